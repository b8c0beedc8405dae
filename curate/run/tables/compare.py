"""State of clips after they are compared with take-downs and with each other."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.dedup import Duplicate
from reelweave.curate.dedup.text_hashes import hashes, may_repeat
from reelweave.curate.dedup.types import Surplus
from reelweave.curate.run.tables.clips import KEPT, SCORE, by_span, concat_clips, from_records, to_records
from reelweave.curate.run.tables.columns import (
    Rows,
    column,
    equal,
    filter_rows,
    mask_of,
    places_in,
    replace_values,
)
from reelweave.curate.takedown.takedown import TakeDowns, empty_record
from reelweave.loader.text import pluralize

BALANCE = "dedup.balance"
"""Stage of clips beyond the cap of their concept."""


def taken_down(clips: pa.Table, down: TakeDowns, index_of: Mapping[str, int]) -> pa.Table:
    """Return clips after take-downs, which stay out for ever.

    Args:
        clips: The clips.
        down: Take-downs of the dataset.
        index_of: Index of each source, by URI.
    """
    if not down.removals:
        return clips
    uris = list(index_of)
    named = np.isin(
        column(clips, "source").to_numpy(), [index_of[uri] for uri in down.named if uri in index_of]
    )
    for name in ("key", "source_sha256"):
        named |= mask_of(pc.is_in(column(clips, name), value_set=pa.array(sorted(down.named), pa.string())))
    removed = [(record, down.of(record)) for record in to_records(filter_rows(clips, named), uris)]
    named[named] = [removal is not None for _, removal in removed]
    gone = [empty_record(record, removal) for record, removal in removed if removal is not None]
    return (
        by_span(concat_clips([filter_rows(clips, ~named), from_records(gone, index_of)])) if gone else clips
    )


def copies_among(keys: pa.Array, rank: Callable[[Rows], Rows]) -> Rows:
    """Return the place of the chosen clip of each key that repeats; -1 for the others and for the chosen ones.

    Two names of one source give such clips. They are sorted, so that the name that is kept does not depend on the
    order of the work.

    Args:
        keys: Keys of clips.
        rank: Function from places of clips whose keys repeat to their ranks: the least one is chosen, of equal ones the
            first.
    """
    twin_rows = np.full(len(keys), -1, np.int64)
    rows = np.flatnonzero(may_repeat(hashes(keys)))
    if len(rows):
        codes = keys.take(pa.array(rows)).dictionary_encode().indices.to_numpy()
        repeats = np.bincount(codes)[codes] > 1
        rows, codes = rows[repeats], codes[repeats]
    if len(rows):
        order = np.lexsort((rows, rank(rows), codes))
        _, first, which = np.unique(codes[order], return_index=True, return_inverse=True)
        twins = rows[order][first[which]]
        twin_rows[rows[order]] = np.where(twins == rows[order], -1, twins)
    return twin_rows


def without_copies(clips: pa.Table, rows: Rows, uris: Sequence[str]) -> pa.Table:
    """Return clips, some of them as duplicates of the clip of another source with the same key.

    Args:
        clips: The clips.
        rows: These clips.
        uris: URI of the other source for each.
    """
    mask = np.zeros(len(clips), bool)
    mask[rows] = True
    values = {
        "duplicate_of": column(clips, "key").filter(pa.array(mask)),
        "reason": [f"the same span of the same content as in {uri}" for uri in uris],
    }
    return replace_values(clips, mask, {**values, "state": "duplicate", "stage": "dedup.source"})


def without_duplicates(clips: pa.Table, duplicates: Mapping[str, Duplicate]) -> pa.Table:
    """Return clips after `reelweave.curate.dedup`, which gave ``duplicates``: the original of each duplicate, by key.

    A copy of a clip that is now a duplicate itself becomes a copy of the one that is kept.
    """
    twins = list(duplicates.values())
    keys = pa.array(list(duplicates), pa.string())
    followed = places_in(column(clips, "duplicate_of"), keys)
    followed[~equal(clips, "state", "duplicate")] = -1
    clips = replace_values(
        clips, followed >= 0, {"duplicate_of": [twins[index].of for index in followed[followed >= 0]]}
    )
    return _decide_twins(clips, keys, twins, "duplicate", [f"dedup.{twin.kind}" for twin in twins])


def without_known(clips: pa.Table, references: Mapping[str, tuple[str, Duplicate]]) -> pa.Table:
    """Return clips, those that other datasets hold as filtered: the stage that found each, and its twin, by key."""
    stages, twins = [stage for stage, _ in references.values()], [twin for _, twin in references.values()]
    return _decide_twins(clips, pa.array(list(references), pa.string()), twins, "filtered", stages)


def without_surplus(clips: pa.Table, surplus: Mapping[str, Surplus]) -> pa.Table:
    """Return clips, those beyond the cap of their concept as filtered: the finding of each, by key."""
    found = list(surplus.values())
    rows = places_in(column(clips, "key"), pa.array(list(surplus), pa.string()))
    rows[~equal(clips, "state", "kept")] = -1
    chosen = [found[row] for row in rows[rows >= 0].tolist()]
    values = {
        "score": [float(finding.clips) for finding in chosen],
        "threshold": [float(finding.max_clips) for finding in chosen],
        "reason": [finding.reason for finding in chosen],
    }
    return replace_values(clips, rows >= 0, {**values, "state": "filtered", "stage": BALANCE})


def describe_crowded(clips: int, max_clips: int) -> tuple[str, ...]:
    """Return in words how many clips of a dataset stay although their concept has more than its cap."""
    if not clips:
        return ()
    return (
        f"{pluralize(clips, 'clip')} of the dataset stay beyond dedup.balance.max_clips = {max_clips:,}: clips that it"
        " has are never dropped; curate to another --out for a lower cap",
    )


def _decide_twins(
    clips: pa.Table, keys: pa.Array, twins: Sequence[Duplicate], state: str, stages: Sequence[str]
) -> pa.Table:
    rows = places_in(column(clips, "key"), keys)
    rows[~equal(clips, "state", "kept")] = -1
    chosen = rows[rows >= 0].tolist()
    values: dict[str, object] = {
        name: [getattr(twins[row], name) for row in chosen] for name in ("score", "threshold")
    }
    lengths_s = column(clips, "duration_s").filter(pa.array(rows >= 0)).to_pylist()
    values["reason"] = [twins[row].reason_of(length) for row, length in zip(chosen, lengths_s, strict=True)]
    if state == "duplicate":
        values["duplicate_of"] = [twins[row].of for row in chosen]
    return replace_values(
        clips, rows >= 0, {**values, "state": state, "stage": [stages[row] for row in chosen]}
    )


def qualities(clips: pa.Table) -> NDArray[np.float64]:
    """Return the quality of clips, by falling priority: pixels, aesthetic score, length, bits a second, [clips, 4]."""
    width, height, size, duration_s = (
        column(clips, name).to_numpy() for name in ("width", "height", "clip_bytes", "duration_s")
    )
    aesthetic = np.zeros(len(clips))
    if f"{SCORE}aesthetic" in clips.column_names:
        aesthetic = pc.fill_null(column(clips, f"{SCORE}aesthetic"), 0.0).to_numpy()
    # numpy rounds decimals otherwise than Python.
    lengths, which = np.unique(duration_s, return_inverse=True)
    rounded = np.array([round(length, 1) for length in lengths.tolist()], np.float64)
    bits = np.rint(size / np.maximum(duration_s, 1e-6))
    return np.stack([width.astype(np.float64) * height, aesthetic, rounded[which], bits], axis=1)


def plain(clips: pa.Table) -> pa.Table:
    """Return clips without the columns that the verdict adds."""
    return clips.drop_columns([field.name for field in KEPT if field.name in clips.column_names])
