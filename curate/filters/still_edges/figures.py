"""Scores of static graphics: logos, marks of channels, stars of generators, with words or without.

The edges of a graphic stay where they are while the scene moves beneath it. Over many pictures the gradients of the
scene cancel each other, and those of a graphic add up, also of one that is half transparent. Edges that stay count
where they form a small figure: sharp, of lines in more than one direction, and with none beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.still_edges.meter import CELL, EDGES, FIELDS, FIRST, STEADY, Floats, StillEdges
from reelweave.loader.base.compiled import compiled

_FEWEST = 3  # steady edges of a cell of a figure
_LEAST = 150  # of a figure
_WIDEST, _HIGHEST = 0.6, 0.25  # of the picture
_ROUND = 0.5  # least ratio of steps across and down, either way: a line has one of them
_SHARP, _STRONG, _SHARP_STRONG = 1.4, 40.0, 1.15  # sharpness of a figure, also of one with strong steps
_FILLED = 0.1  # least share of the edges in a figure that are steady
_RING = 3  # cells around a figure
_BESIDE = 0.2  # most steady edges there, per edge of the figure
_ELSEWHERE = 0.03  # most steady edges in the rest of the picture, per edge of it
_STILL = 0.35  # the same by the weaker level: above it the camera stands still, and nothing can be told
_SCENE = 1500  # fewest edges there


def graphic_scores(edges: StillEdges) -> dict[str, float]:
    """Return ``static_graphic`` and ``static_edges``.

    ``static_graphic`` is the share of the picture's pixels that are edges of its largest static graphic, 0 for none.
    ``static_edges`` is the share of all edges that stay. Where it is above 0.35 the camera stands still, a
    graphic cannot be told from the scene, and ``static_graphic`` is 0.
    """
    total, steady = float(edges.cells[EDGES].sum()), float(edges.cells[FIRST].sum())
    pixels = max(1, edges.cells[EDGES].size * CELL**2)
    figures = [figure for level in range(len(STEADY)) for figure in _figures_at(level, edges.cells)]
    return {
        "static_graphic": max((figure.count for figure in figures if figure.is_graphic()), default=0.0)
        / pixels,
        "static_edges": steady / total if total else 0.0,
    }


@dataclass(frozen=True)
class _Figure:
    """Connected group of edges that stay where they are.

    Attributes:
        count: Number of them.
        height: Height as a share of the picture's.
        width: Width as a share of the picture's.
        roundness: Ratio of its steps across and down, the smaller to the larger.
        strength: Mean step.
        sharpness: Mean ratio of its steps to those around them.
        filled: Share of the edges where it lies that are steady.
        beside: Steady edges around it, per edge of it.
        scene: Number of edges elsewhere.
        elsewhere: Share of them that are steady.
        still: Share of them that are steady by the weaker level.
    """

    count: float
    height: float
    width: float
    roundness: float
    strength: float
    sharpness: float
    filled: float
    beside: float
    scene: float
    elsewhere: float
    still: float

    def is_graphic(self) -> bool:
        """Return whether it is a small figure of its own before a scene that moves."""
        is_sharp = self.sharpness >= (_SHARP_STRONG if self.strength >= _STRONG else _SHARP)
        is_small = self.count >= _LEAST and self.height <= _HIGHEST and self.width <= _WIDEST
        is_apart = self.filled >= _FILLED and self.beside <= _BESIDE
        moves = self.scene >= _SCENE and self.elsewhere <= _ELSEWHERE and self.still <= _STILL
        return is_small and is_sharp and self.roundness >= _ROUND and is_apart and moves


def _figures_at(level: int, cells: Floats) -> Iterator[_Figure]:
    """Yield the figures of edges of a level of steadiness."""
    first = FIRST + FIELDS * level
    edges, weakly, steady = cells[EDGES], cells[FIRST], cells[first]
    steps_across, steps_down, sharpness = cells[first + 1 : first + FIELDS]
    rows, columns = edges.shape
    for group in _groups(steady >= _FEWEST):
        down, across = (slice(int(axis.min()), int(axis.max()) + 1) for axis in group)
        box = down, across
        ring = tuple(slice(max(0, part.start - _RING), part.stop + _RING) for part in box)
        count, *steps = (float(plane[group].sum()) for plane in (steady, steps_across, steps_down))
        scene = max(1.0, float(edges.sum() - edges[box].sum()))
        yield _Figure(
            count=count,
            height=(down.stop - down.start) / rows,
            width=(across.stop - across.start) / columns,
            roundness=min(steps) / max(steps),
            strength=sum(steps) / count,
            sharpness=float(sharpness[group].sum()) / count,
            filled=count / float(edges[group].sum()),
            beside=float(steady[ring].sum() - steady[box].sum()) / count,
            scene=scene,
            elsewhere=float(steady.sum() - steady[box].sum()) / scene,
            still=float(weakly.sum() - weakly[box].sum()) / scene,
        )


def _groups(cells: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the rows and columns of each group of cells that touch each other, also at their corners."""
    if not cells.any():
        return
    labels = _label(cells)
    order = np.argsort(labels, axis=None, kind="stable")
    ends = np.flatnonzero(np.diff(labels.ravel()[order])) + 1
    for group in np.split(order, ends):
        if labels.flat[group[0]]:
            rows, columns = np.unravel_index(group, labels.shape)
            yield rows, columns


@compiled
def _label(cells: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return a number for each cell, from 1 on, that cells share which touch each other; 0 for False."""
    rows, columns = cells.shape
    labels = np.zeros((rows, columns), np.int64)
    stack = np.zeros((cells.size + 1, 2), np.int64)
    groups = 0
    for start_row in range(rows):
        for start_column in range(columns):
            if not cells[start_row, start_column] or labels[start_row, start_column]:
                continue
            groups += 1
            labels[start_row, start_column] = groups
            stack[0] = start_row, start_column
            waiting = 1
            while waiting:
                waiting -= 1
                row, column = stack[waiting]
                for y in range(max(0, row - 1), min(rows, row + 2)):
                    for x in range(max(0, column - 1), min(columns, column + 2)):
                        if cells[y, x] and not labels[y, x]:
                            labels[y, x] = groups
                            stack[waiting] = y, x
                            waiting += 1
    return labels
