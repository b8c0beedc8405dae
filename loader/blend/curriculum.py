"""Curriculum: blend weights and bucket shapes by optimizer step, such as images before videos."""

import math
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, RootModel, model_validator

from reelweave.loader.blend.config import Factor
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.settings import SET, Settings

Weights = dict[str, Factor] | tuple[Factor, ...]

_MOST_PIECES = 48  # of all stages; a state holds 64 changes of weights
_DIGITS = 6  # of the weights of a piece


class CurriculumStage(Settings):
    """Overrides of the configuration during a range of steps; unset keys keep their values."""

    READ_WITH: ClassVar = dict.fromkeys(("course", "pieces"), ("to_weights", SET))

    until_step: PositiveInt | None = Field(
        default=None, description="first step of the next stage; null, in the last stage: no end"
    )
    weights: Weights | None = Field(
        default=None,
        description="weights of blend nodes by name (images, web/images), or of all nodes of the outermost blend",
    )
    to_weights: Weights | None = Field(
        default=None,
        exclude_if=lambda weights: weights is None,
        description="weights of the same nodes at the end of the stage, which ``weights`` approach in pieces",
    )
    course: Literal["linear", "cosine"] = Field(
        default="linear",
        exclude_if=lambda course: course == "linear",
        description="course of the weights: linear, or cosine, which is slow at both ends",
    )
    pieces: int = Field(
        default=16,
        ge=2,
        le=_MOST_PIECES,
        exclude_if=lambda pieces: pieces == 16,
        description="number of pieces of equal length, each with the weights of its middle",
    )

    @model_validator(mode="after")
    def _check_course(self) -> Self:
        if self.to_weights is None:
            return self
        if self.until_step is None:
            raise ValueError("to_weights needs until_step, the step at which they are reached")
        if type(self.weights) is not type(self.to_weights) or len(self.weights or ()) != len(self.to_weights):
            raise ValueError("to_weights needs weights of the same nodes, in the same form")
        if isinstance(self.to_weights, dict) and set(self.to_weights) != set(self.weights or ()):
            raise ValueError("to_weights needs weights of the same nodes: " + ", ".join(self.to_weights))
        ends = self.to_weights.values() if isinstance(self.to_weights, dict) else self.to_weights
        if not any(ends):
            raise ValueError("to_weights needs a weight above 0")
        return self

    def divide(self, begin: int) -> Iterator["CurriculumStage"]:
        """Yield stages of constant weights in its place.

        Args:
            begin: Its first step.
        """
        if self.to_weights is None or self.until_step is None or self.weights is None:
            yield self
            return
        count = min(self.pieces, self.until_step - begin)
        for piece in range(count):
            share = (piece + 0.5) / count
            if self.course == "cosine":
                share = (1 - math.cos(math.pi * share)) / 2
            yield CurriculumStage(
                until_step=begin + (self.until_step - begin) * (piece + 1) // count,
                weights=_between(self.weights, self.to_weights, share),
                frames=self.frames,
                sizes=self.sizes,
            )

    frames: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed numbers of frames; null: those of the buckets"
    )
    sizes: Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Field(min_length=1)] | None = Field(
        default=None, description="allowed [height, width] in pixels; null: those of the buckets"
    )

    def buckets(self, config: BucketConfig) -> BucketConfig:
        """Return the bucket configuration of this stage.

        Raises:
            pydantic.ValidationError: frames or sizes make no valid bucket configuration, such as a repeated value.
        """
        changed = {"frames": self.frames, "sizes": self.sizes}
        changes = {name: value for name, value in changed.items() if value is not None}
        return BucketConfig.model_validate({**config.model_dump(), **changes})


class Curriculum(RootModel[tuple[CurriculumStage, ...]], frozen=True):
    """Stages of a run, in order; the last stage has no end."""

    root: tuple[CurriculumStage, ...]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.root:
            raise ValueError("a curriculum has at least 1 stage")
        *ends, last = [stage.until_step for stage in self.root]
        if last is not None:
            raise ValueError("the last stage lasts for ever; leave out its until_step")
        if any((until or 0) >= (other or 0) for until, other in pairwise([0, *ends])):
            raise ValueError(f"until_step must rise from stage to stage; here it is {ends}")
        return self

    @model_validator(mode="after")
    def _check_pieces(self) -> Self:
        pieces = len(self.stages) - sum(stage.to_weights is None for stage in self.root)
        if pieces > _MOST_PIECES:
            raise ValueError(
                f"its stages have {pieces} pieces, and {_MOST_PIECES} is the most: set fewer pieces"
            )
        return self

    @cached_property
    def stages(self) -> tuple[CurriculumStage, ...]:
        """Stages of constant weights, by number; one with ``to_weights`` is divided into its pieces."""
        return tuple(stage for _, stage in self._divided())

    @cached_property
    def given(self) -> tuple[int, ...]:
        """Index in the configuration of each of `stages`."""
        return tuple(index for index, _ in self._divided())

    def stage_at(self, step: int) -> int:
        """Return the number of the stage of an optimizer step; steps count from 0 over the whole run."""
        return sum(stage.until_step is not None and stage.until_step <= step for stage in self.stages)

    def _divided(self) -> Iterator[tuple[int, CurriculumStage]]:
        begin = 0
        for index, stage in enumerate(self.root):
            for piece in stage.divide(begin):
                yield index, piece
            begin = stage.until_step or begin


def _between(begin: Weights, end: Weights, share: float) -> Weights:
    """Return the weights a share of the way from some to others."""

    def mix(first: float, last: float) -> float:
        return round(first + share * (last - first), _DIGITS)

    if isinstance(begin, tuple) and isinstance(end, tuple):
        return tuple(mix(first, last) for first, last in zip(begin, end, strict=True))
    assert isinstance(begin, dict)
    assert isinstance(end, dict)
    return {name: mix(weight, end[name]) for name, weight in begin.items()}
