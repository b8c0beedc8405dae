"""Samples of shards as columns: all that the bytes of a shard follow from, and where its clips lie now."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from curate.run.tables.clips import SCORE, clip_ids, score_names, scores_map
from curate.run.tables.columns import Mask, column, equal, kept, mask_of
from curate.sources.inputs import SourceRef
from curate.takedown.takedown import STAGE as REMOVAL
from loader.dataset import ACCOUNTING, INDEX, SCORES
from loader.dataset.schema import PLACEMENT
from loader.dataset.shard import npy_bytes

_ROW = [name for name in INDEX.names if name not in (*PLACEMENT, "embeddings")]


def samples_of(
    clips: pa.Table,
    sources: Sequence[SourceRef],
    places: pa.Table,
    vectors: pa.Array,
    texts: pa.Table | None,
) -> pa.Table:
    """Return kept clips as samples.

    Args:
        clips: Kept clips.
        sources: Sources by their number.
        places: Bytes of each clip in the dataset's present revision: shard, offset and size, or nulls.
        vectors: Video embedding of each clip, see `vector_column`.
        texts: Results of the text embedding of each clip, or None.
    """
    nothing = pa.nulls(len(clips), pa.string())
    columns = {
        **{name: column(clips, name) for name in _ROW if name not in ("source", "attributes", "scores")},
        "source": uris(clips, sources),
        "attributes": attributes(clips, sources),
        **{f"{SCORE}{name}": column(clips, f"{SCORE}{name}") for name in score_names(clips)},
        "clip_bytes": column(clips, "clip_bytes"),
        "clip_id": clip_ids(clips),
        "video": vectors,
        "text.arrays": nothing if texts is None else column(texts, "arrays"),
        "text.sha256": nothing if texts is None else column(texts, "sha256"),
        **{f"place.{name}": column(places, name) for name in ("shard", "offset", "size")},
    }
    return pa.table(columns)


def uris(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Array:
    """Return the URI of each clip's source."""
    return pa.array([source.uri for source in sources], pa.string()).take(column(clips, "source"))


def attributes(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Array:
    """Return the columns of the input list for each clip's source."""
    rows = [sorted(source.attributes.items()) for source in sources]
    return pa.array(rows, pa.map_(pa.string(), pa.string())).take(column(clips, "source"))


def index_columns(samples: pa.Table) -> pa.Table:
    """Return the columns of the index, without the placement that writing decides and without embeddings."""
    scores = scores_map(samples)
    columns = [scores if name == "scores" else column(samples, name) for name in _ROW]
    return pa.table(columns, _ROW).cast(pa.schema([INDEX.field(name) for name in _ROW]))


def accounting_table(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Table:
    """Return the accounting of clips, a row for each."""
    columns = {
        name: uris(clips, sources) if name == "source" else column(clips, name) for name in ACCOUNTING.names
    }
    return pa.table(columns, ACCOUNTING)


def scores_table(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Table:
    """Return the scores of clips that were cut and not taken down, a row for each."""
    cut = mask_of(pc.is_valid(column(clips, "key"))) & ~equal(clips, "stage", REMOVAL)
    clips = kept(clips, cut)
    own = {"source": uris(clips, sources), "scores": scores_map(clips)}
    columns = {name: own[name] if name in own else column(clips, name) for name in SCORES.names}
    return pa.table(columns, SCORES)


def vector_column(matrix: NDArray[Any], there: Mask) -> pa.Array:
    """Return vectors as a column, null where there is none.

    Args:
        matrix: Vectors [n, D].
        there: Rows that have one.
    """
    flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1], mask=pa.array(~there))


def vectors_of(samples: pa.Table) -> Iterator[NDArray[Any] | None]:
    """Yield the video embedding of each sample, or None."""
    for chunk in samples.column("video").chunks:
        values, size = chunk.values.to_numpy(zero_copy_only=False), chunk.type.list_size
        matrix = values.reshape(-1, size)[chunk.offset : chunk.offset + len(chunk)]
        yield from (
            vector if valid else None
            for vector, valid in zip(matrix, chunk.is_valid().to_pylist(), strict=True)
        )


def embedding_digests(samples: pa.Table) -> pa.Array:
    """Return the checksums of each sample's arrays as the index states them."""
    texts = samples.column("text.sha256").to_pylist()
    rows = []
    for text, vector in zip(texts, vectors_of(samples), strict=True):
        found = [] if text is None else [("text.npy", text)]
        if vector is not None:
            found.append(("video.npy", hashlib.sha256(npy_bytes(vector)).hexdigest()))
        rows.append(found)
    return pa.array(rows, INDEX.field("embeddings").type)


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(data: bytes) -> pa.Table:
    """Return the table of `to_ipc`."""
    return pa.ipc.open_stream(data).read_all()
