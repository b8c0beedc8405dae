"""Patch-aligned, overlapping parts of the latents (arXiv 2512.07350v1, section 3.3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from reelweave.train.parallel.context.partition import Partition
from reelweave.train.sampling.latent_parallel.axes import axis_of
from reelweave.train.sampling.latent_parallel.rules import Cores, Rules


class LatentPart(NamedTuple):
    """One part along the divided axis, in patches; an empty one starts where it ends.

    Attributes:
        core: first patch of its own and the one behind its last; cores cover the axis once.
        reach: the same with overlaps: what the part sees.
    """

    core: tuple[int, int]
    reach: tuple[int, int]

    @property
    def length(self) -> int:
        """Number of patches that the part sees."""
        return self.reach[1] - self.reach[0]


@dataclass(frozen=True)
class LatentDivision:
    """Division of the latents at one step.

    Attributes:
        axis: divided axis.
        parts: a part for every group of ranks.
        patch: latent rows per patch along the axis.
    """

    axis: int
    parts: tuple[LatentPart, ...]
    patch: int

    @property
    def lengths(self) -> list[int]:
        """Latent rows of each part."""
        return [part.length * self.patch for part in self.parts]

    def rows(self, index: int) -> slice:
        """Return the latent rows of a part (Eq. 9)."""
        start, end = self.parts[index].reach
        return slice(start * self.patch, end * self.patch)


def divide_axis(patches: int, count: int, overlap: float, cores: Cores) -> tuple[LatentPart, ...]:
    """Divide an axis (Eqs. 7 and 8).

    Args:
        patches: number of patches along the axis, N.
        count: number of parts, K.
        overlap: overlap r; O = floor(r L) patches on either side, L = ceil(N / K).
        cores: ceil: L patches each, so that the last parts may be empty; even: none is, if N >= K.
    """
    longest = -(-patches // count)
    reach = math.floor(round(overlap * longest, 9))
    if cores == "ceil":
        ends = [min(patches, index * longest) for index in range(count + 1)]
    else:
        ends = list(Partition.even(patches, count).ends)
    return tuple(
        LatentPart(
            (start, end), (max(0, start - reach), min(patches, end + reach)) if end > start else (start, end)
        )
        for start, end in pairwise(ends)
    )


def divide(
    rules: Rules, grid: Sequence[int], patch: Sequence[int], count: int, step: int, total: int
) -> LatentDivision | None:
    """Return the division at a step; None: the latents stay whole.

    Args:
        rules: the mode's.
        grid: patches along time, rows and columns.
        patch: latent frames, rows and columns of a patch.
        count: number of parts, K.
        step: index of the step, from 0.
        total: number of steps.

    Raises:
        UsageError: no axis has a patch for every part.
    """
    if count == 1 or step < rules.exact_steps:
        return None
    axis = axis_of(rules.axes, step, total, grid, count)
    overlap = rules.overlap_at(step / max(1, total - 1))
    return LatentDivision(axis, divide_axis(grid[axis], count, overlap, rules.cores), patch[axis])
