"""Divided axis of every step: strict rotation (arXiv 2512.07350v1, Eq. 3), or the three phases of its artifact."""

from collections.abc import Sequence

from reelweave.loader.errors import UsageError
from reelweave.train.sampling.latent_parallel.rules import Axes

TIME, ROWS, COLUMNS = range(3)


def axis_of(kind: Axes, step: int, total: int, grid: Sequence[int], parts: int) -> int:
    """Return the divided axis: 0 time, 1 rows, 2 columns.

    Args:
        kind: rule. strict: time, rows, columns in turn. phases: the same until 70 % of the steps, then rows instead of
            time; from 80 % rows and columns in turn, from 92 % rows. eligible: the axes with a patch for every part,
            in turn. fixed: the first eligible axis.
        step: index of the step, from 0.
        total: number of steps.
        grid: patches along time, rows and columns.
        parts: number of parts, K.

    Raises:
        UsageError: no axis has a patch for every part.
    """
    if kind == "strict":
        return step % 3
    if kind == "phases":
        return _phase_offset(step, total, grid, parts)
    eligible = [axis for axis in (TIME, ROWS, COLUMNS) if grid[axis] >= parts]
    if not eligible:
        T, H, W = grid
        raise UsageError(
            f"lp={parts}: latents of {T}x{H}x{W} patches cannot be divided into {parts} parts; take lp of at most"
            f" {max(grid)}"
        )
    return eligible[step % len(eligible)] if kind == "eligible" else eligible[0]


def _phase_offset(step: int, total: int, grid: Sequence[int], parts: int) -> int:
    progress = step / max(1, total - 1)
    rows_first = ROWS if grid[ROWS] >= parts else COLUMNS
    if progress >= 0.92:
        return ROWS
    if progress >= 0.80:
        return COLUMNS if step % 2 else ROWS
    axis = step % 3
    if axis == TIME and (progress >= 0.70 or grid[TIME] < parts):
        return rows_first
    return axis if grid[axis] >= parts else rows_first


def steps_to_mix(axes: Sequence[int | None]) -> int | None:
    """Return the number of steps after which every position has reached every other; None: not within these.

    One step without division suffices, or two of different axes: within a part, all of the other axes is seen
    (arXiv 2512.07350v1, Theorem 1). Overlaps may suffice earlier.

    Args:
        axes: axes of consecutive steps; None: not divided.
    """
    divided_axes: set[int] = set()
    for count, axis in enumerate(axes, 1):
        if axis is None:
            return count
        divided_axes.add(axis)
        if len(divided_axes) == 2:
            return count
    return None
