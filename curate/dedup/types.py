"""Inputs, results and settings of deduplication."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.dedup.fingerprint import Match
from reelweave.curate.dedup.products import IndexArray
from reelweave.curate.dedup.vector_file import Chosen, Matrix, VectorFile
from reelweave.curate.models.device import Device
from reelweave.loader.settings import SET, Settings


@dataclass(frozen=True)
class Vectors:
    """Vectors of some rows of a table, which are read when they are compared.

    Attributes:
        there: Rows that have one, [rows].
        read: Function from such rows, at least one, to their vectors, float32 [n, D], unit length.
        dtype: Type in which they are stored.
        places: Where each lies in a file, [rows]; None: in several.
    """

    there: NDArray[np.bool_]
    read: Callable[[IndexArray], NDArray[np.float32]]
    dtype: np.dtype[Any]
    places: NDArray[np.int32] | None = None

    @staticmethod
    def of(vectors: Iterable[NDArray[Any] | None]) -> "Vectors":
        """Return the vectors of those rows that have one; each is read once, and none stays in memory.

        Raises:
            RunError: they have different widths.
        """
        file, vector_rows = VectorFile(), array("i")
        for vector in vectors:
            vector_rows.append(-1 if vector is None else len(file))
            if vector is not None:
                file.append(vector[None])
        return Vectors.from_file(np.array(vector_rows, np.int32), file)

    @staticmethod
    def from_file(vector_rows: NDArray[np.int32], file: VectorFile) -> "Vectors":
        """Return vectors that lie in a file at places, -1 where there is none, [rows]."""
        return Vectors(vector_rows >= 0, lambda rows: file[vector_rows[rows]], file.dtype, vector_rows)

    def some(self, rows: IndexArray) -> Matrix:
        """Return the vectors of such rows, which are read when they are asked for."""
        return Chosen(self.read, rows, self.dtype, None if self.places is None else self.places[rows])


class ManyPairs(NamedTuple):
    """Comparison of many pairs of clips at once, on other processors than this one's.

    Attributes:
        least: Number of pairs from which it is used. It also compares pairs that a sequential comparison
            would skip because their earlier clip is a duplicate. The result is the same.
        match: Function from pairs of rows, the kept clip first, and a minimum overlap to the agreement of each; see
            `reelweave.curate.dedup.fingerprint.overlap`.
    """

    least: int
    match: Callable[[Sequence[tuple[int, int]], float], Sequence[Match | None]]


@dataclass(frozen=True)
class DedupClips:
    """Clips with the properties that deduplication compares, as columns.

    Attributes:
        keys: Keys.
        sha256: Digests of the clips' bytes.
        sources: URIs of the sources.
        quality: Rank among duplicates: the larger row is kept, ties go to the smaller key, [clips, properties].
        old: True if a clip lies in the dataset already, [clips].
        footage: Perceptual embeddings of clips that have a fingerprint.
        embedding: Embeddings by a model.
        fingerprint: Function from a clip's row to its fingerprint, uint8 [pictures, 27, 48], or None. It is
            called for candidates only, since fingerprints of all clips fill a memory.
        many: Comparison of many of these clips at once; None compares one pair after the other, here.
    """

    keys: pa.Array
    sha256: pa.Array
    sources: pa.Array
    quality: NDArray[Any]
    old: NDArray[np.bool_]
    footage: Vectors
    embedding: Vectors
    fingerprint: Callable[[int], NDArray[np.uint8] | None]
    many: ManyPairs | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def order(self, rows: IndexArray | None = None) -> IndexArray:
        """Return rows, or all of them, old ones first, then by falling quality, then by key."""
        if rows is None:
            rows = np.arange(len(self))
        by_key = np.empty(len(rows), np.intp)
        by_key[pc.sort_indices(self.keys.take(pa.array(rows))).to_numpy()] = np.arange(len(rows))
        return rows[np.lexsort((by_key, *(-self.quality[rows].T[::-1]), ~self.old[rows]))]

    def fresh(self, other_clips: "DedupClips") -> "DedupClips":
        """Return the new clips, and the clips of others as old ones."""
        rows = np.flatnonzero(~self.old)
        ours = len(rows)

        # Vectors are read when they are compared, each from the table that has them.
        def concat_ids(self_vectors: Vectors, other: Vectors) -> Vectors:
            def read(selected: IndexArray) -> NDArray[np.float32]:
                in_self = selected < ours
                parts = [
                    (in_self, self_vectors, rows[selected[in_self]]),
                    (~in_self, other, selected[~in_self] - ours),
                ]
                matrices = [(where, vectors.read(some)) for where, vectors, some in parts if len(some)]
                matrix = np.empty((len(selected), matrices[0][1].shape[1]), np.float32)
                for where, some in matrices:
                    matrix[where] = some
                return matrix

            present = np.concatenate([self_vectors.there[rows], other.there])
            return Vectors(present, read, np.result_type(self_vectors.dtype, other.dtype))

        def fingerprint(row: int) -> NDArray[np.uint8] | None:
            return self.fingerprint(int(rows[row])) if row < ours else other_clips.fingerprint(row - ours)

        # Tables may rank by different numbers of scores; those that one lacks count as 0.
        ranks = max(self.quality.shape[1], other_clips.quality.shape[1])
        padded = [
            np.pad(quality, ((0, 0), (0, ranks - quality.shape[1])))
            for quality in (self.quality[rows], other_clips.quality)
        ]
        sources = [
            source_column.cast(pa.string())
            for source_column in (self.sources.take(rows), other_clips.sources)
        ]
        return DedupClips(
            keys=pa.concat_arrays([self.keys.take(rows), other_clips.keys]),
            sha256=pa.concat_arrays([self.sha256.take(rows), other_clips.sha256]),
            sources=pa.concat_arrays(sources),
            quality=np.concatenate(padded),
            old=np.arange(ours + len(other_clips)) >= ours,
            footage=concat_ids(self.footage, other_clips.footage),
            embedding=concat_ids(self.embedding, other_clips.embedding),
            fingerprint=fingerprint,
        )


@dataclass(frozen=True)
class Duplicate:
    """Finding that a clip is a duplicate.

    Attributes:
        of: Key of the kept clip.
        kind: "exact", "perceptual" or "semantic".
        score: Similarity of the two clips.
        threshold: Threshold that the score reached.
        reason: Reason in words.
        shared_s: Length of the footage that both show, as far as pictures at fixed times tell; None for other kinds.
    """

    of: str
    kind: str
    score: float
    threshold: float
    reason: str
    shared_s: float | None = None

    def reason_of(self, duration_s: float) -> str:
        """Return the reason for a clip of a length; a last picture stands for no more than is left of the clip."""
        if self.shared_s is None:
            return self.reason
        return f"shows {min(self.shared_s, duration_s):.1f} s of {self.reason}"


@dataclass(frozen=True)
class Surplus:
    """Finding that a clip is beyond the cap of its concept.

    Attributes:
        concept: Index of the concept.
        clips: Number of its clips.
        old: Number of those that the dataset has already.
        concepts: Number of concepts that have clips.
        max_clips: Cap.
    """

    concept: int
    clips: int
    old: int
    concepts: int
    max_clips: int

    @property
    def reason(self) -> str:
        """Sentence for the accounting."""
        return (
            f"its concept, number {self.concept + 1} of {self.concepts}, has {self.clips:,} clips, more than"
            f" dedup.balance.max_clips = {self.max_clips:,}: "
            + (f"the {self.old:,} of the dataset stay, then the best" if self.old else "the best are kept")
        )


class ExactConfig(Settings):
    """Exact duplicates: clips with the same bytes."""

    enabled: bool = Field(True, description="drop clips with the same encoded bytes")


class PerceptualConfig(Settings):
    """Perceptual duplicates: the same footage in another encoding, scale, slight crop or colour."""

    READ_WITH: ClassVar = dict.fromkeys(
        ("candidate_similarity", "min_agreement", "min_overlap"), ("enabled", (True,))
    )

    enabled: bool = Field(
        True, description="drop re-encodes, slight crops and recolourings of the same footage"
    )
    candidate_similarity: float = Field(
        0.5,
        ge=-1,
        le=1,
        description="minimum cosine similarity of the perceptual embeddings at which two clips are compared in detail",
    )
    min_agreement: float = Field(
        0.65,
        ge=0,
        le=1,
        description="minimum agreement of duplicates, measured on what moves and on the least similar parts of the"
        " pictures, 0 to 1",
    )
    min_overlap: float = Field(
        0.7,
        gt=0,
        le=1,
        description="minimum share of a clip's pictures that the other clip must contain, 0 to 1",
    )


class SemanticConfig(Settings):
    """Semantic duplicates: clips close to one another in the embedding of a model."""

    READ_WITH: ClassVar = dict.fromkeys(
        ("min_similarity", "cluster_size", "iterations"), ("enabled", (True,))
    )

    enabled: bool = Field(False, description="drop clips close to another clip in the model's embedding")
    min_similarity: float = Field(0.97, ge=-1, le=1, description="minimum cosine similarity of duplicates")
    cluster_size: int = Field(1000, ge=2, description="mean number of clips per k-means cluster")
    iterations: int = Field(20, ge=1, description="maximum k-means iterations")


class BalanceConfig(Settings):
    """Balance of concepts: clusters of similar clips in the embedding of a model, after deduplication."""

    READ_WITH: ClassVar = dict.fromkeys(("concepts", "iterations"), ("max_clips", SET))

    max_clips: int | None = Field(
        None,
        ge=1,
        description="maximum number of clips of a concept; of more the best are kept, the others filtered. Unset: all",
    )
    concepts: int = Field(
        1000, ge=1, description="approximate number of concepts; at most as many as there are clips"
    )
    iterations: int = Field(20, ge=1, description="maximum k-means iterations")


class DedupConfig(Settings):
    """Deduplication within a dataset and against other datasets."""

    ADDED: ClassVar = frozenset({"balance"})
    REVISION: ClassVar[int] = 0
    SPEED_ONLY: ClassVar = frozenset({"device"})

    exact: ExactConfig = ExactConfig()
    perceptual: PerceptualConfig = PerceptualConfig()
    semantic: SemanticConfig = SemanticConfig()
    balance: BalanceConfig = BalanceConfig()
    older: tuple[str, ...] = Field(
        (), description="finished datasets; new clips with a duplicate in one of them are filtered"
    )
    evaluation: tuple[str, ...] = Field(
        (),
        description="finished evaluation datasets; clips with a duplicate in one of them are filtered",
    )
    device: Device = Field(
        "auto",
        description="device of the candidate search among up to 50,000 clips, and of k-means; auto: a GPU, if there is"
        " one and at least 20,000 clips",
    )
