"""Places of a dataset's clips: the bytes inside its shards, by identity of these bytes."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.run.tables.clips import clip_ids
from reelweave.curate.run.tables.columns import column
from reelweave.loader.dataset import Dataset

PLACES = pa.schema({"id": pa.string(), "shard": pa.string(), "offset": pa.int64(), "size": pa.int64()})
"""Bytes of clips inside shards, by identity of these bytes."""


def places_of(dataset: Dataset | None) -> pa.Table:
    """Return the places of a dataset's clips, columns `PLACES`."""
    if dataset is None:
        return PLACES.empty_table()
    parts = map(_places, dataset.table_parts("index"))  # whole rows: offsets are used only if all are sound
    return pa.concat_tables([PLACES.empty_table(), *parts]).combine_chunks()


def _places(index: pa.Table) -> pa.Table:
    index = index.select(["key", "sha256", "shard", "members"])
    members = column(index, "members")
    rows, values = pc.list_parent_indices(members), members.flatten()
    clips = pc.equal(values.field("suffix"), "mp4")
    index = index.take(rows.filter(clips))
    where = values.filter(clips)
    columns = [clip_ids(index), column(index, "shard"), where.field("offset"), where.field("size")]
    return pa.table(columns, PLACES)


def identities_of(dataset: Dataset) -> Iterator[pa.Array]:
    """Yield the identities of a dataset's clips by parts."""
    return map(clip_ids, dataset.table_parts("index", ["key", "sha256"]))
