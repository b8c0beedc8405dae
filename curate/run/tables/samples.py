"""Samples of shards as columns: all that the bytes of a shard follow from, and where its clips lie now."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.curate.run.tables.clips import SCORE, clip_ids, score_names, scores_map, with_columns
from reelweave.curate.run.tables.columns import Mask, column, equal, filter_rows, mask_of
from reelweave.curate.sources.inputs import SourceRef
from reelweave.curate.takedown.takedown import STAGE as REMOVAL
from reelweave.loader.dataset import ACCOUNTING, INDEX, SCORES
from reelweave.loader.dataset.schema import PLACEMENT
from reelweave.loader.dataset.shard import npy_bytes

_ROW = [name for name in INDEX.names if name not in (*PLACEMENT, "embeddings")]
_OF_CLIPS = [name for name in _ROW if name not in ("source", "attributes", "scores")]
_BEFORE = [*_OF_CLIPS, "source", "attributes"]
_PLACE = [f"place.{name}" for name in ("shard", "offset", "size")]
OVERLAPS = "overlaps another listed segment; its seconds are those of other rows"
_BEHIND = ["clip_bytes", "clip_id", "video", "text.arrays", "text.sha256", *_PLACE]


def samples_of(
    clips: pa.Table,
    sources: Sequence[SourceRef],
    locations: pa.Table,
    vectors: pa.Array,
    texts: pa.Table | None,
) -> pa.Table:
    """Return kept clips as samples.

    Args:
        clips: Kept clips.
        sources: Sources by their number.
        locations: Bytes of each clip in the dataset's present revision: shard, offset and size, or nulls.
        vectors: Video embedding of each clip, see `vector_column`.
        texts: Results of the text embedding of each clip, or None.
    """
    nothing = pa.nulls(len(clips), pa.string())
    columns = {
        **{name: column(clips, name) for name in _OF_CLIPS},
        "source": uris(clips, sources),
        "attributes": attributes(clips, sources),
        **{f"{SCORE}{name}": column(clips, f"{SCORE}{name}") for name in score_names(clips)},
        "clip_bytes": column(clips, "clip_bytes"),
        "clip_id": clip_ids(clips),
        "video": vectors,
        "text.arrays": nothing if texts is None else column(texts, "arrays"),
        "text.sha256": nothing if texts is None else column(texts, "sha256"),
        **{f"place.{name}": column(locations, name) for name in ("shard", "offset", "size")},
    }
    return pa.table(columns)


def uris(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Array:
    """Return the URI of each clip's source."""
    return _of_sources(clips, sources, lambda source: source.uri, pa.string())


def attributes(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Array:
    """Return the columns of the input list for each clip's source, or segment of it."""
    kind = pa.map_(pa.string(), pa.string())
    segments = column(clips, "segment")
    if segments.null_count < len(segments):
        source_indices = column(clips, "source").to_pylist()
        pairs = zip(source_indices, segments.to_pylist(), strict=True)
        return pa.array(
            [sorted(sources[index].attributes_of(segment).items()) for index, segment in pairs], kind
        )
    return _of_sources(clips, sources, lambda source: sorted(source.attributes.items()), kind)


def _of_sources(
    clips: pa.Table, sources: Sequence[SourceRef], value: Callable[[SourceRef], object], kind: pa.DataType
) -> pa.Array:
    """Return a value of each clip's source; others than those between the first and the last are not asked."""
    source_indices = column(clips, "source").to_numpy()
    first, last = (int(source_indices.min()), int(source_indices.max())) if len(source_indices) else (0, -1)
    values = [value(source) for source in sources[first : last + 1]]
    return pa.array(values, kind).take(pa.array(source_indices - first))


def index_columns(samples: pa.Table) -> pa.Table:
    """Return the columns of the index, without the placement that writing decides and without embeddings."""
    scores = scores_map(samples)
    columns = [scores if name == "scores" else column(samples, name) for name in _ROW]
    return pa.table(columns, _ROW).cast(pa.schema([INDEX.field(name) for name in _ROW]))


def accounting_table(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Table:
    """Return the accounting of clips, a row for each, and each second of a source in one row.

    Spans that lie over others of their source, as listed segments may, have no length in it.

    Args:
        clips: Clips, sorted by source and part.
        sources: All sources.
    """
    columns = {
        name: uris(clips, sources) if name == "source" else column(clips, name) for name in ACCOUNTING.names
    }
    at_s, over = _find_covered(clips)
    if over.any():
        mask = pa.array(over)
        for name in ("start_s", "end_s"):
            columns[name] = pc.if_else(mask, pa.array(at_s), columns[name])
        # Beside what else is said of a kept clip; of others the reason that they went comes first.
        reasons = columns["reason"]
        joined = pc.if_else(pc.equal(columns["state"], "kept"), OVERLAPS + "; ", "")
        said = pc.if_else(pc.equal(reasons, ""), OVERLAPS, pc.binary_join_element_wise(joined, reasons, ""))
        columns["reason"] = pc.if_else(mask, said, reasons)
    return pa.table(columns, ACCOUNTING)


def _find_covered(clips: pa.Table) -> tuple[NDArray[np.float64], Mask]:
    """Return how far earlier rows of each row's source reach, in seconds, and the rows that begin before that."""
    source_N = column(clips, "source").to_numpy()
    start_N, end_N = (
        pc.fill_null(column(clips, name), 0.0).to_numpy().astype(np.float64) for name in ("start_s", "end_s")
    )
    at_s, over = np.zeros(len(source_N)), np.zeros(len(source_N), bool)
    crossed_N = (source_N[1:] == source_N[:-1]) & (start_N[1:] < end_N[:-1])
    for source in np.unique(source_N[1:][crossed_N]).tolist():
        reach_s = 0.0
        first, last = np.searchsorted(source_N, [source, source + 1]).tolist()
        for row in range(first, last):
            at_s[row], over[row] = reach_s, start_N[row] < reach_s
            reach_s = max(reach_s, reach_s if over[row] else end_N[row])
    return at_s, over


def scores_table(clips: pa.Table, sources: Sequence[SourceRef]) -> pa.Table:
    """Return the scores of clips that were cut and not taken down, a row for each."""
    cut = mask_of(pc.is_valid(column(clips, "key"))) & ~equal(clips, "stage", REMOVAL)
    clips = filter_rows(clips, cut)
    special = {"source": uris(clips, sources), "scores": scores_map(clips)}
    columns = {name: special[name] if name in special else column(clips, name) for name in SCORES.names}
    return pa.table(columns, SCORES)


def vector_column(matrix: NDArray[Any], present: Mask) -> pa.Array:
    """Return vectors as a column, null where there is none.

    Args:
        matrix: Vectors [n, D].
        present: Rows that have one.
    """
    flat = pa.array(np.ascontiguousarray(matrix).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1], mask=pa.array(~present))


def without_vectors(samples: pa.Table) -> pa.Table:
    """Return samples without the column of embeddings if none has one: others may have some of another size."""
    return samples.drop_columns(["video"]) if samples.column("video").null_count == len(samples) else samples


def with_vectors(samples: pa.Table) -> pa.Table:
    """Return samples of several partitions with a column of embeddings, and all in the order of `samples_of`."""
    if "video" not in samples.column_names:
        nothing = vector_column(np.zeros((len(samples), 1), np.float16), np.zeros(len(samples), bool))
        samples = samples.append_column("video", nothing)
    scores = [f"{SCORE}{name}" for name in score_names(samples)]
    first = samples.select([*_BEFORE, *scores, *_BEHIND])
    remaining = [name for name in samples.column_names if name not in first.column_names]
    return with_columns(first, {name: column(samples, name) for name in remaining})


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
        digests = [] if text is None else [("text.npy", text)]
        if vector is not None:
            digests.append(("video.npy", hashlib.sha256(npy_bytes(vector)).hexdigest()))
        rows.append(digests)
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
