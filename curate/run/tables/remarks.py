"""Sentences for the person who runs a curation: what kept clips lack, or were changed by."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.caption.sidecars import CUT, FURTHER_KEYS, OTHER, UNUSED, describe_unused
from reelweave.curate.caption.types import CONTRADICTED
from reelweave.curate.run.tables.clips import SCORE
from reelweave.curate.run.tables.columns import column, equal, filter_rows
from reelweave.curate.run.tables.samples import OVERLAPS
from reelweave.loader.text import pluralize

_NAMED = 3
"""Sources that are named."""
_SMART = re.compile(r"(?:^|; )smart: (\d+) of (\d+) frames copied(?=$|; )")
"""What a record says of a clip that ``cut.mode=smart`` copied in part."""


def describe_captions(clips: Iterable[pa.Table], max_chars: int) -> tuple[str, ...]:
    """Return in words how many kept clips have an unused sidecar, a caption that was cut, or one that contradicts."""
    origins: list[str | None] = []
    cut = contradicting = 0
    for table in clips:
        kept = filter_rows(table, equal(table, "state", "kept"))
        unused, cut_of, contradicted = (
            pc.map_lookup(column(kept, "caption_provenance"), key, "first")
            for key in (UNUSED, CUT, CONTRADICTED)
        )
        origins += pc.coalesce(unused, column(kept, "caption_source")).to_pylist()
        cut += len(cut_of) - cut_of.null_count
        contradicting += len(contradicted) - contradicted.null_count
    notes = list(describe_unused(origins))
    if cut:
        clips_have = pluralize(cut, "clip has", "clips have")
        notes.append(
            f"{clips_have} a written caption of more than captions.max_chars = {max_chars:,} characters: the rest is"
            " cut off"
        )
    if contradicting:
        clips_have = pluralize(contradicting, "clip has", "clips have")
        notes.append(
            f"{clips_have} a caption that contradicts the measured movement of the camera after all attempts"
            f" (caption_provenance: {CONTRADICTED})"
        )
    return tuple(notes)


def describe_sidecars(clips: Iterable[pa.Table]) -> tuple[str, ...]:
    """Return in words of how many films with kept clips a sidecar was not used, or only in part."""
    films: dict[str, set[int]] = {OTHER: set(), FURTHER_KEYS: set()}
    first: dict[str, str] = {}
    # The provenance of captions names what was not used; films count once, whatever their clips.
    for table in clips:
        kept = filter_rows(table, equal(table, "state", "kept"))
        for key, sources in films.items():
            values = pc.map_lookup(column(kept, "caption_provenance"), key, "first")
            named = pc.is_valid(values)
            sources.update(pc.filter(column(kept, "source"), named).to_pylist())
            if key not in first and (value := next(iter(pc.drop_null(values)), None)) is not None:
                first[key] = value.as_py()
    notes = []
    if count := len(films[OTHER]):
        notes.append(
            f"{pluralize(count, 'film has', 'films have')} a NAME.txt and a NAME.json with different captions: that of"
            f" NAME.txt is used (not used, the first: {first[OTHER]})"
        )
    if count := len(films[FURTHER_KEYS]):
        notes.append(
            f'{pluralize(count, "film has", "films have")} a NAME.json with keys beside "caption", which are not used'
            f" (the first: {first[FURTHER_KEYS]}); a list of inputs keeps such columns as attributes (docs/inputs.md)"
        )
    return tuple(notes)


def describe_match(clips: Iterable[pa.Table]) -> tuple[str, ...]:
    """Return in words how many kept clips have a caption of which only the begin was compared with them."""
    count = 0
    for table in clips:
        if (name := f"{SCORE}caption_match_cut") in table.column_names:
            cut = column(filter_rows(table, equal(table, "state", "kept")), name)
            count += len(cut) - cut.null_count
    if not count:
        return ()
    clips_have = pluralize(count, "clip has", "clips have")
    return (
        f"{clips_have} a caption that is longer than the model of embed.backend reads: caption_match compares its begin"
        " (scores: caption_match_cut)",
    )


def describe_empty_sources(clips: Iterable[pa.Table], sources: Sequence[str]) -> tuple[str, ...]:
    """Return in words how many sources gave no clip since all of them was filtered; the first of them are named.

    Args:
        clips: Spans in their final states; all of a source are in one table.
        sources: URIs of sources by their number.
    """
    count, named = 0, list[str]()
    for table in clips:
        source_indices = column(table, "source").to_numpy()
        others = np.unique(source_indices[~equal(table, "state", "filtered")])
        empty = np.setdiff1d(source_indices, others)
        count += len(empty)
        for source_index in empty[: _NAMED - len(named)].tolist():
            rows = np.flatnonzero(source_indices == source_index)
            length_s = pc.subtract(column(table, "end_s"), column(table, "start_s")).take(pa.array(rows))
            longest = int(rows[int(np.argmax(pc.fill_null(length_s, 0.0).to_numpy()))])
            reason = column(table, "reason")[longest].as_py()
            named.append(f"{sources[source_index].rsplit('/', 1)[-1]} ({reason})")
    if not count:
        return ()
    more = ", ..." if count > len(named) else ""
    return (
        f"{pluralize(count, 'source gave', 'sources gave')} no clip, since all of it was filtered: {', '.join(named)}"
        f"{more}; the report and accounting.parquet have all rows",
    )


def describe_clips(clips: Iterable[pa.Table]) -> tuple[str, ...]:
    """Return in words how many kept clips were changed as no mark asks for or cut smart, or lack their film's sound."""
    reasons, sounds = RemarkCounts(), RemarkCounts()
    for table in clips:
        kept = filter_rows(table, equal(table, "state", "kept"))
        reasons.add_reasons(column(kept, "reason"))
        sounds.add_sounds(column(kept, "audio"))
    return (*reasons.sentences(), *sounds.sentences())


class RemarkCounts:
    """Numbers of kept clips by what their reason says of pictures, and by why they have no sound."""

    def __init__(self) -> None:
        self._pictures: Counter[str] = Counter()
        self._silent: Counter[str] = Counter()
        self._smart: Counter[str] = Counter()

    def add_reasons(self, reasons: pa.Array) -> None:
        """Count the reasons of kept rows of the accounting."""
        for reason, clips in _value_counts(reasons):
            if counts := _SMART.search(reason):
                copied, frames = (clips * int(number) for number in counts.groups())
                self._smart.update(clips=clips, copied=copied, frames=frames)
            rest = _SMART.sub("", reason.removeprefix(OVERLAPS).removeprefix("; ")).removeprefix("; ")
            self._pictures.update({rest: clips} if rest else {})

    def add_sounds(self, sounds: pa.Array) -> None:
        """Count the sound tracks of kept rows of the index."""
        # What an error says of one film stands behind a colon.
        for sound, clips in _value_counts(sounds):
            if sound.startswith("none ("):
                self._silent[sound[6:-1].partition(": ")[0]] += clips

    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each thing that is said of some clips."""
        pictures = dict(self._pictures)
        if smart := self._smart:
            pictures[f"smart, {smart['copied']:,} of {smart['frames']:,} frames copied"] = smart["clips"]
        return tuple(
            f"{pluralize(count, 'clip')}: {reason} (accounting.parquet, reason)"
            for reason, count in sorted(pictures.items())
        ) + tuple(
            f"{pluralize(count, 'clip has', 'clips have')} no sound: {reason} (index.parquet, audio)"
            for reason, count in sorted(self._silent.items())
        )


def _value_counts(texts: pa.Array) -> Iterator[tuple[str, int]]:
    """Yield each different text that is not empty, and how often it occurs."""
    values, counts = pc.value_counts(texts).flatten()
    for text, count in zip(values.to_pylist(), counts.to_pylist(), strict=True):
        if text:
            yield text, count
