"""Stitching: merging of shots that a detector over-split (nemo_vfm 2.1).

A cut is removed when the embeddings on both sides show the same scene. Embeddings are taken at fixed steps
while the source is scanned, so no extra decoding is needed.
"""

import bisect
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.frames.perceptual import describe
from reelweave.curate.shots.types import Transition
from reelweave.loader.base.operations import charged
from reelweave.loader.settings import Settings

_FACING = 3
"""Samples on each side of a cut that are compared; one of them may be a flash or a blurred frame."""

_NEAR = 4
"""Samples on each side that measure the motion."""

_AT_ONCE = 32

Floats = NDArray[np.float32]


class StitchConfig(Settings):
    """Merging of over-split shots. docs/benchmarks/stitch.md has the measurements behind the defaults."""

    READ_WITH: ClassVar = dict.fromkeys(
        ("samples_per_s", "min_similarity", "motion_weight", "min_inner_similarity"), ("enabled", (True,))
    )

    enabled: bool = Field(
        False,
        description="merge neighbouring shots that look like one scene; for a detector that splits too often, since"
        " it takes back true cuts between similar pictures as well",
    )
    samples_per_s: float = Field(6.25, gt=0, le=60, description="embedded pictures per second of the source")
    min_similarity: float = Field(
        0.7,
        ge=-1,
        le=1,
        description="minimum cosine similarity across a cut, with the allowance for motion, at which two shots are"
        " merged",
    )
    motion_weight: float = Field(
        0.5,
        ge=0,
        le=2,
        description="allowance for motion, as a share of the embedding distance between samples near the cut",
    )
    min_inner_similarity: float = Field(
        0.2,
        ge=-1,
        le=1,
        description="minimum cosine similarity of the start and the end of a shot; a less similar shot is not merged",
    )


@dataclass
class SampleEmbeddings:
    """Embeddings of sampled frames of a source, in half precision; 0.6 KB each, 28 MB for two hours.

    Pictures are embedded in batches: a batch takes little more time than a single picture.

    Attributes:
        config: Sampling rate and thresholds.
        fps: Mean frames per second of the source.
    """

    config: StitchConfig
    fps: float = 25.0
    _numbers: list[int] = field(default_factory=list, init=False)
    _vectors: list[NDArray[np.float16]] = field(default_factory=list, init=False)
    _waiting: list[NDArray[np.uint8]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._step = max(1, round(self.fps / self.config.samples_per_s))

    @charged("shots: stitch")
    def push(self, frame_index: int, picture: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, uint8 [36, 64, 3] RGB; most are skipped."""
        if self.config.enabled and frame_index % self._step == 0:
            self._numbers.append(frame_index)
            self._waiting.append(picture)
            if len(self._waiting) == _AT_ONCE:
                self._describe()

    def _describe(self) -> None:
        if self._waiting:
            self._vectors.extend(describe(np.stack(self._waiting)).astype(np.float16))
            self._waiting.clear()

    def between(self, first: int, end: int) -> Floats:
        """Return the embeddings of frames [first, end), float32 [n, D]."""
        low, high = self._places(first, end)
        if low >= high:
            return np.zeros((0, 0), np.float32)
        if high > len(self._vectors):
            self._describe()
        return np.stack(self._vectors[low:high]).astype(np.float32)

    def any_between(self, first: int, end: int) -> bool:
        """Return True when one of frames [first, end) is a sample."""
        low, high = self._places(first, end)
        return low < high

    def _places(self, first: int, end: int) -> tuple[int, int]:
        return bisect.bisect_left(self._numbers, first), bisect.bisect_left(self._numbers, end)


def stitch(
    transitions: list[Transition],
    samples: SampleEmbeddings,
    frames: int,
    config: StitchConfig,
    first: int = 0,
) -> list[Transition]:
    """Return the transitions that remain after over-split shots are merged.

    Only cuts are removed: a gradual transition leaves blended frames, which belong to no shot. Cuts without a
    sample between them are one boundary, removed or kept together.

    Args:
        transitions: Sorted, disjoint transitions.
        samples: Embeddings of the same source.
        frames: Number of frames of the source.
        config: Thresholds.
        first: First frame of the first shot.
    """
    if not config.enabled:
        return transitions
    boundaries = _boundaries(transitions, samples)
    remaining: list[
        Transition
    ] = []  # ``first`` is the first frame of the shot before the boundary, as merged so far
    for index, boundary in enumerate(boundaries):
        if all(transition.kind == "cut" for transition in boundary):
            end = boundaries[index + 1][0].start_frame + 1 if index + 1 < len(boundaries) else frames
            before = samples.between(first, boundary[0].start_frame + 1)
            if _one_scene(before, samples.between(boundary[-1].end_frame, end), config):
                continue
        remaining.extend(boundary)
        first = boundary[-1].end_frame
    return remaining


def _boundaries(transitions: list[Transition], samples: SampleEmbeddings) -> list[list[Transition]]:
    """Group transitions without a sample between them."""
    groups = [[transition] for transition in transitions[:1]]
    for earlier, other in pairwise(transitions):
        if samples.any_between(earlier.end_frame, other.start_frame + 1):
            groups.append([other])
        else:
            groups[-1].append(other)
    return groups


def _one_scene(before: Floats, after: Floats, config: StitchConfig) -> bool:
    if not len(before) or not len(after):
        return False
    alike = float((before[-_FACING:] @ after[:_FACING].T).max())
    steps = [_steps(side) for side in (before[-_NEAR:], after[:_NEAR])]
    motion = max((float(1 - each.mean()) for each in steps if len(each)), default=0.0)
    inner = min(float(side[len(side) // 20] @ side[-1 - len(side) // 20]) for side in (before, after))
    return (
        alike + config.motion_weight * motion >= config.min_similarity
        and inner >= config.min_inner_similarity
    )


def _steps(vectors: Floats) -> Floats:
    """Return the similarity of each vector to the next, [n - 1]."""
    return np.asarray((vectors[:-1] * vectors[1:]).sum(axis=1), np.float32)
