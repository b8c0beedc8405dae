"""Kept clips as `reelweave.curate.dedup` compares them: digests, arrays of footage, and embeddings of a model."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from reelweave.curate.dedup import DedupClips, ManyPairs, Vectors
from reelweave.curate.dedup.fingerprint import Match
from reelweave.curate.dedup.vector_file import VectorFile
from reelweave.curate.run.clip_arrays import ClipArrays, FingerprintPlace
from reelweave.curate.run.stages.footage import PAIRS_AT_ONCE, MatchMany
from reelweave.curate.run.tables.kept import KeptClips
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.run.tables.results import packed_arrays


def dedup_clips(
    clips: KeptClips,
    uris: Sequence[str],
    arrays: ClipArrays,
    embedding: Vectors,
    match: MatchMany | None,
) -> DedupClips:
    """Return kept clips with everything that their comparison needs.

    Args:
        clips: Kept clips.
        uris: URIs of all sources, by number.
        arrays: Arrays of footage of the clips.
        embedding: Embeddings of the clips; see `model_vectors`.
        match: Comparison of many pairs at once; None compares one after the other, here.
    """
    footage_rows = clips.footage

    def clip_id(row: int) -> str:
        return f"{clips.keys[row]}-{clips.digests[row].as_py()[:8].hex()}"

    def place(row: int) -> FingerprintPlace:
        return arrays.fingerprint_place(int(footage_rows[row]), clip_id(row))

    def many(match: MatchMany) -> ManyPairs:
        def compare(pairs: Sequence[tuple[int, int]], min_overlap: float) -> list[Match | None]:
            return match([(place(first), place(two)) for first, two in pairs], min_overlap)

        return ManyPairs(PAIRS_AT_ONCE, compare)

    # Fingerprints are read where a comparison asks for them: they would not fit in memory.
    return DedupClips(
        keys=clips.keys,
        sha256=clips.digests,
        sources=pa.DictionaryArray.from_arrays(pa.array(clips.sources), pa.array(uris, pa.string())),
        quality=clips.quality,
        old=clips.old,
        footage=Vectors.from_file(footage_rows, arrays.vectors),
        embedding=embedding,
        fingerprint=lambda row: (
            arrays.fingerprint(int(footage_rows[row]), clip_id(row)) if footage_rows[row] >= 0 else None
        ),
        many=None if match is None else many(match),
    )


def model_vectors(
    clips: KeptClips, tables: Partitions, results: Callable[[int, pa.Table], pa.Table]
) -> Vectors:
    """Return the embeddings of kept clips, of one width.

    Args:
        clips: Kept clips, at least one.
        tables: Tables of all clips.
        results: Function that returns the results of the embedding stage for clips of a partition.

    Raises:
        RunError: the embeddings have different widths.
    """
    file, vector_rows = VectorFile(), np.full(len(clips), -1, np.int32)
    for partition, table in enumerate(tables):
        in_partition = clips.of_partition(partition)
        matrix, has_vector = packed_arrays(results(partition, table.take(pa.array(clips.rows[in_partition]))))
        vector_rows[in_partition][has_vector] = np.arange(len(file), len(file) + int(has_vector.sum()))
        file.append(matrix[has_vector])
    return Vectors.from_file(vector_rows, file)
