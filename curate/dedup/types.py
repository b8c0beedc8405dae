"""Inputs, results and settings of deduplication."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from curate.models.device import Device
from loader.settings import Settings


@dataclass(frozen=True)
class DedupItem:
    """Clip with the properties that deduplication compares.

    Attributes:
        key: Key of the clip.
        sha256: Digest of the clip's bytes.
        source: URI of the source.
        duration_s: Duration of the clip.
        quality: Rank among duplicates: the larger tuple is kept; ties go to the smaller key.
        fingerprint: Function that reads uint8 [pictures, 27, 48] from `curate.dedup.fingerprint`, and returns None
            where there is none; called for candidates only, since fingerprints of all clips fill a memory. Or None.
        embedding: Model embedding, float [D], unit length, or None.
        global_embedding: Perceptual embedding, float [D], for the candidate search; or None.
    """

    key: str
    sha256: str
    source: str
    duration_s: float
    quality: tuple[float, ...]
    fingerprint: Callable[[], NDArray[np.uint8] | None] | None = None
    embedding: NDArray[Any] | None = None
    global_embedding: NDArray[Any] | None = None


@dataclass(frozen=True)
class Duplicate:
    """Finding that a clip is a duplicate.

    Attributes:
        of: Key of the kept clip.
        kind: "exact", "perceptual" or "semantic".
        score: Similarity of the two clips.
        threshold: Threshold that the score reached.
        reason: Reason in words.
    """

    of: str
    kind: str
    score: float
    threshold: float
    reason: str


class ExactConfig(Settings):
    """Exact duplicates: clips with the same bytes."""

    enabled: bool = Field(True, description="drop clips with the same encoded bytes")


class PerceptualConfig(Settings):
    """Perceptual duplicates: the same footage in another encoding, scale, slight crop or colour."""

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

    enabled: bool = Field(False, description="drop clips close to another clip in the model's embedding")
    min_similarity: float = Field(0.97, ge=-1, le=1, description="minimum cosine similarity of duplicates")
    cluster_size: int = Field(1000, ge=2, description="mean number of clips per k-means cluster")
    iterations: int = Field(20, ge=1, description="maximum k-means iterations")


class DedupConfig(Settings):
    """Deduplication within a dataset and against other datasets."""

    SPEED_ONLY: ClassVar = frozenset({"device"})

    exact: ExactConfig = ExactConfig()
    perceptual: PerceptualConfig = PerceptualConfig()
    semantic: SemanticConfig = SemanticConfig()
    older: tuple[str, ...] = Field(
        (), description="finished datasets; new clips with a duplicate in one of them are filtered"
    )
    evaluation: tuple[str, ...] = Field(
        (),
        description="finished evaluation datasets; clips with a duplicate in one of them are filtered",
    )
    device: Device = Field(
        "auto",
        description="device of the candidate search; auto: a GPU, if there is one and at least 20,000 clips",
    )
