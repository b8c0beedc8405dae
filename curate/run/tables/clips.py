"""Records of clips as columns: a row for each span, and for each source that gave none.

Sources are numbers, and each score is a column of its own: an eighth of the memory of records, and no object for a
clip.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.ledger.records import Record
from reelweave.curate.run.tables.columns import Mask, column, mask_of, repeat_value, whole
from reelweave.loader.errors import RunError

SCORE = "scores."
"""Start of the names of columns that are scores."""

CLIPS = pa.schema(
    {
        "source": pa.int32(),
        "part": pa.int32(),
        "parts": pa.int32(),
        "start_s": pa.float64(),
        "end_s": pa.float64(),
        "state": pa.string(),
        "stage": pa.string(),
        "reason": pa.string(),
        "score": pa.float64(),
        "threshold": pa.float64(),
        "duplicate_of": pa.string(),
        "key": pa.string(),
        "source_sha256": pa.string(),
        "segment": pa.int32(),
        "frames": pa.int32(),
        "fps": pa.float64(),
        "height": pa.int32(),
        "width": pa.int32(),
        "duration_s": pa.float64(),
        "audio": pa.string(),
        "sha256": pa.string(),
        "clip_bytes": pa.int64(),
        "ends_by": pa.string(),
        "ends_probability": pa.float64(),
        "inside": pa.string(),
        "inside_s": pa.float64(),
        "inside_probability": pa.float64(),
    }
)
"""Columns of `Record` that the pass over a source decides; those of scores follow."""

KEPT = pa.schema(
    {
        "caption": pa.large_string(),  # 2 GiB in all would be reached first
        "caption_source": pa.string(),
        "caption_provenance": pa.map_(pa.string(), pa.string()),
        "text_tokens": pa.int32(),
        "split": pa.string(),
        "bin": pa.string(),
    }
)
"""Columns that the verdict adds."""

MOST_CLIPS = (2**31 - 1) // 64
"""Rows of one run: a column of SHA-256 in hexadecimal holds 2 GiB."""

_AT_ONCE = 4096


def from_records(records: Sequence[Record], index_of: Mapping[str, int]) -> pa.Table:
    """Return the columns of records.

    Args:
        records: The records; of those columns that the verdict adds they have none.
        index_of: Index of each source, by URI.
    """
    values: dict[str, pa.Array] = {
        "source": pa.array([index_of[record.source] for record in records], pa.int32())
    }
    for field in CLIPS:
        if field.name not in values:
            values[field.name] = pa.array([getattr(record, field.name) for record in records], field.type)
    return pa.table({**values, **score_columns([record.scores for record in records])})


def score_columns(scores: Sequence[Mapping[str, float]]) -> dict[str, pa.Array]:
    """Return a column for each name of a score; null where it was not measured."""
    names = sorted({name for clip_scores in scores for name in clip_scores})
    return {
        f"{SCORE}{name}": pa.array([clip_scores.get(name) for clip_scores in scores], pa.float64())
        for name in names
    }


def wide_scores(scores: pa.Array) -> dict[str, pa.Array]:
    """Return a column for each name in maps of scores, as `score_columns`."""
    # Names as codes, and values, of the maps that this slice holds.
    count = len(scores)
    offsets = scores.offsets.to_numpy()[: count + 1]
    inside = slice(int(offsets[0]), int(offsets[-1]))
    names = scores.keys[inside.start : inside.stop]
    if not pa.types.is_dictionary(names.type):
        names = names.dictionary_encode()
    codes, values = names.indices.to_numpy(), scores.items[inside.start : inside.stop].to_numpy()
    # A matrix of scores by clip, and which of them there are.
    present = np.zeros((len(names.dictionary), count), bool)
    matrix = np.zeros(present.shape)
    lengths = np.diff(offsets)
    some = lengths > 0
    width = len(names.dictionary)
    if not width:
        return {}
    # Nearly always every map has all names in the same order: a reshape is enough.
    if (lengths[some] == width).all() and (codes.reshape(-1, width) == np.arange(width)).all():
        present[:, some], matrix[:, some] = True, values.reshape(-1, width).T
    else:
        row = np.repeat(np.arange(count), lengths)
        present[codes, row], matrix[codes, row] = True, values
    # A column for each name that any clip has.
    columns = {
        f"{SCORE}{name}": pa.array(scores, mask=None if has.all() else ~has)
        for name, scores, has in zip(names.dictionary.to_pylist(), matrix, present, strict=True)
        if has.any()
    }
    return dict(sorted(columns.items()))


def with_columns(table: pa.Table, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return a table with further columns."""
    for name, values in columns.items():
        table = table.append_column(name, values)
    return table


def from_entries(entries: pa.Table, source_indices: pa.Array) -> pa.Table:
    """Return the columns of the records in entries of the pass over sources.

    Args:
        entries: Columns of `reelweave.curate.ledger.records.SourceSummary`.
        source_indices: Index of each entry's source.
    """
    lists = column(entries, "records")
    records = lists.flatten()
    stored_fields = {field.name for field in records.type}  # an earlier version knew fewer fields
    values = {
        field.name: records.field(field.name)
        if field.name in stored_fields
        else repeat_value(getattr(Record, field.name, None), field.type, len(records))
        for field in CLIPS
        if field.name != "source"
    }
    table = pa.table({"source": source_indices.take(pc.list_parent_indices(lists)), **values}).cast(CLIPS)
    return with_columns(table, wide_scores(records.field("scores")))


def to_records(table: pa.Table, uris: Sequence[str]) -> Iterable[Record]:
    """Yield the rows as records, without the columns that the verdict adds."""
    names = [field.name for field in CLIPS]
    scores = score_names(table)
    for batch in table.select([*names, *(f"{SCORE}{name}" for name in scores)]).to_batches(_AT_ONCE):
        for row in batch.to_pylist():
            fields = {name: row[name] for name in names}
            measured = {name: row[f"{SCORE}{name}"] for name in scores}
            yield Record(
                **{**fields, "source": uris[fields["source"]]},
                scores={name: value for name, value in measured.items() if value is not None},
            )


def concat_clips(tables: Iterable[pa.Table]) -> pa.Table:
    """Return all rows of tables of clips; a score that one of them lacks was not measured there."""
    parts = list(tables)
    if sum(map(len, parts)) > MOST_CLIPS:
        raise RunError(
            f"one run holds {MOST_CLIPS:,} clips; curate parts of the input into datasets of their own, and blend these"
        )
    return whole(parts, CLIPS)


def by_span(table: pa.Table) -> pa.Table:
    """Return the rows sorted by source and span."""
    part, source = column(table, "part").to_numpy(), column(table, "source").to_numpy()
    later, same = source[1:] > source[:-1], source[1:] == source[:-1]
    if (later | same & (part[1:] >= part[:-1])).all():
        return table
    return table.take(pa.array(np.lexsort((part, source))))


def score_names(table: pa.Table) -> list[str]:
    """Return the names of the scores that a table has, sorted."""
    return sorted(name.removeprefix(SCORE) for name in table.column_names if name.startswith(SCORE))


def scores_map(table: pa.Table) -> pa.Array:
    """Return the measured scores of each row as a map, sorted by name."""
    names = score_names(table)
    return _map_of(
        names,
        np.stack([mask_of(pc.is_valid(column(table, f"{SCORE}{name}"))) for name in names], axis=1)
        if names
        else np.zeros((len(table), 0), bool),
        np.stack([column(table, f"{SCORE}{name}").to_numpy(zero_copy_only=False) for name in names], axis=1)
        if names
        else np.zeros((len(table), 0)),
    )


def _map_of(names: Sequence[str], present: Mask, values: Any) -> pa.Array:
    ends = np.cumsum(present.sum(axis=1, dtype=np.int64))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    which = np.broadcast_to(np.arange(len(names), dtype=np.int32), present.shape)[present]
    keys = pa.array(names, pa.string()).take(pa.array(which))
    return pa.MapArray.from_arrays(offsets, keys, pa.array(values[present], pa.float64()))


def clip_ids(table: pa.Table) -> pa.Array:
    """Return the identity of each row's clip, as `reelweave.curate.ledger.records.clip_id`; null where none was cut."""
    digests = pc.utf8_slice_codeunits(column(table, "sha256"), 0, 16)
    return pc.binary_join_element_wise(column(table, "key"), digests, "-")
