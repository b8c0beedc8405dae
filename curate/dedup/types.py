"""What deduplication works on and what it says."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.models.device import Device


@dataclass(frozen=True)
class Item:
    """A clip as far as duplicates are concerned.

    Attributes:
        key: of the clip.
        sha256: of its bytes.
        source: URI.
        duration_s: of the clip.
        quality: of two duplicates the one with the larger tuple is kept; ties go to the smaller key.
        fingerprint: uint8 [pictures, 27, 48] of `curate.dedup.fingerprint`, or None.
        embedding: float [D], unit length, or None.
        global_embedding: the weights-free embedding, float [D], which finds candidates; or None.
    """

    key: str
    sha256: str
    source: str
    duration_s: float
    quality: tuple[float, ...]
    fingerprint: NDArray[np.uint8] | None = None
    embedding: NDArray[Any] | None = None
    global_embedding: NDArray[Any] | None = None


@dataclass(frozen=True)
class Duplicate:
    """That a clip is a duplicate.

    Attributes:
        of: key of the clip kept in its place.
        kind: "exact", "perceptual" or "semantic".
        score: how alike they are.
        threshold: that the score met.
        reason: in words.
    """

    of: str
    kind: str
    score: float
    threshold: float
    reason: str


class ExactConfig(BaseModel, frozen=True, extra="forbid"):
    """Clips of the same bytes."""

    enabled: bool = Field(True, description="drop clips whose encoded bytes are the same")


class PerceptualConfig(BaseModel, frozen=True, extra="forbid"):
    """The same footage encoded, scaled, slightly cropped or coloured otherwise."""

    enabled: bool = Field(
        True, description="drop re-encodes, slight crops and recolourings of the same footage"
    )
    candidate_similarity: float = Field(
        0.5,
        ge=-1,
        le=1,
        description="cosine of the weights-free embeddings from which two clips are compared closely",
    )
    min_agreement: float = Field(
        0.65, ge=0, le=1, description="agreement of what moves, and of the least alike parts of the pictures"
    )
    min_overlap: float = Field(
        0.7, gt=0, le=1, description="share of a clip's pictures that must be found in the other"
    )


class SemanticConfig(BaseModel, frozen=True, extra="forbid"):
    """Clips that show the same kind of thing, by the embedding of a model."""

    enabled: bool = Field(False, description="drop clips near another in the model's embedding")
    min_similarity: float = Field(0.97, ge=-1, le=1, description="cosine from which two clips are one")
    cluster_size: int = Field(1000, ge=2, description="clips a cluster holds on average")
    iterations: int = Field(20, ge=1, description="of k-means")


class DedupConfig(BaseModel, frozen=True, extra="forbid"):
    """What counts as a duplicate."""

    SPEED_ONLY: ClassVar = frozenset({"device"})

    exact: ExactConfig = ExactConfig()
    perceptual: PerceptualConfig = PerceptualConfig()
    semantic: SemanticConfig = SemanticConfig()
    older: tuple[str, ...] = Field(
        (), description="finished datasets; new clips that one of them holds already are filtered"
    )
    evaluation: tuple[str, ...] = Field(
        (),
        description="finished datasets that models are evaluated on; clips that one of them holds are filtered",
    )
    device: Device = Field(
        "auto", description="where candidates are sought; auto: a GPU where there is one and 20,000 clips"
    )
