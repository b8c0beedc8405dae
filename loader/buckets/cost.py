"""Cost models: seconds of a microbatch on one rank, from its batch size B and sequence length S."""

from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, PositiveInt, model_validator

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.settings import Settings

NonNegative = Annotated[float, Field(ge=0)]


class LinearQuadraticCost(Settings):
    """Cost a + b*B*S + c*B*S^2: projections and MLPs grow linearly with the tokens, attention quadratically.

    A DiT layer of width d takes about 24*S*d^2 + 4*S^2*d FLOPs per sample, so attention dominates above S = 6*d.
    """

    kind: Literal["linear_quadratic"] = "linear_quadratic"
    fixed_s: NonNegative = Field(0.0, description="a: fixed seconds per microbatch")
    token_s: NonNegative = Field(description="b: seconds per token")
    square_s: NonNegative = Field(description="c: seconds per token squared")

    def sample_s(self, length: ArrayLike) -> Floats:
        """Return the seconds that each sample of S tokens adds to a microbatch."""
        tokens = np.asarray(length, np.float64)
        return np.asarray(self.token_s * tokens + self.square_s * tokens**2)


class PowerCost(Settings):
    """Cost a + b*B*S^p (AdaptiveLoad, section 3.2); with a = 0, b = 1 and p = 2 it counts B*S^2, not seconds."""

    kind: Literal["power"] = "power"
    fixed_s: NonNegative = Field(0.0, description="a: fixed seconds per microbatch")
    scale_s: NonNegative = Field(1.0, description="b: seconds per token to the power p")
    exponent: float = Field(2.0, ge=1, le=3, description="p: exponent of the sequence length")

    def sample_s(self, length: ArrayLike) -> Floats:
        """Return the seconds that each sample of S tokens adds to a microbatch."""
        return np.asarray(self.scale_s * np.asarray(length, np.float64) ** self.exponent)


class MeasuredCost(Settings):
    """Cost a + f(S)*B*s(S) of another model, with its samples' seconds s(S) multiplied by factors measured by length.

    Buckets of one length differ from any smooth formula: kernels fill a GPU better or worse, and a VAE counts pixels.
    Between two measured lengths the factor is interpolated over log S; beyond them it is that of the nearest one.
    """

    kind: Literal["measured"] = "measured"
    base: LinearQuadraticCost | PowerCost = Field(discriminator="kind", description="cost that is corrected")
    lengths: tuple[PositiveInt, ...] = Field(min_length=1, max_length=64, description="S, in tokens, rising")
    factors: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        description="measured seconds over those of `base`, for each length"
    )

    @model_validator(mode="after")
    def _one_factor_for_each_length(self) -> Self:
        if len(self.factors) != len(self.lengths):
            raise ValueError(
                f"{len(self.lengths)} lengths need as many factors; there are {len(self.factors)}"
            )
        if any(first >= second for first, second in pairwise(self.lengths)):
            raise ValueError("lengths must rise")
        return self

    @property
    def fixed_s(self) -> float:
        """Fixed seconds per microbatch, which are not corrected."""
        return self.base.fixed_s

    def sample_s(self, length: ArrayLike) -> Floats:
        """Return the seconds that each sample of S tokens adds to a microbatch."""
        factor = np.interp(np.log(np.maximum(length, 1)), np.log(self.lengths), self.factors)
        return np.asarray(self.base.sample_s(length) * factor)


Cost = LinearQuadraticCost | PowerCost | MeasuredCost
"""Cost model, discriminated by ``kind``."""


def seconds(cost: Cost, batch: ArrayLike, length: ArrayLike) -> Floats:
    """Return the cost of microbatches of B samples of S tokens; the arguments broadcast against each other."""
    return np.asarray(cost.fixed_s + np.asarray(batch, np.float64) * cost.sample_s(length))


def largest_batch(cost: Cost, length: ArrayLike, target_s: float) -> IndexArray:
    """Return floor((target - a) / cost of a sample), the samples that fit into a step time; 0 if none fits.

    For `PowerCost` this is floor(M_comp / S^p) with M_comp = (target - a) / b (AdaptiveLoad, equation 2).
    """
    # The margin makes a target of exactly k samples mean k on every platform.
    fits = (target_s - cost.fixed_s) / cost.sample_s(length) + 1e-9
    return np.maximum(0, np.floor(fits)).astype(np.int64)
