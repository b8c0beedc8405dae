"""Neighbour search by cosine similarity, in memory independent of the number of vectors.

Products nominate pairs: all of them for few vectors, those within near cells for many. The cosine of a pair is
computed separately in 64 bits, so that neighbours do not depend on the device.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from curate.dedup.cells import InvertedFile
from curate.dedup.products import SLACK, Blocks, Floats, Nominated, Places, blocks, slices
from curate.models.device import Device

CELLS_FROM = 50_000
"""Number of vectors from which they are compared within near cells alone, whatever the device."""

_ROWS, _COLUMNS = 1024, 16384  # size of a block: 67 MB
_ROWS_OF_CELLS = 65_536
_AT_ONCE = 4096  # batch of cosines in 64 bits


def near_pairs(
    vectors: Floats, least: float, most: int, device: Device = "cpu"
) -> Iterator[tuple[int, int, float]]:
    """Yield (earlier, later, cosine) of similar pairs, with a maximum number of earlier ones for each later one.

    Args:
        vectors: float32 [n, D], unit length.
        least: Minimum cosine.
        most: Maximum number of pairs per ``later``; the nearest, ordered by ``later``, then by falling
            cosine.
        device: Device of the products of few vectors; auto is a GPU where there is one and enough work. Pairs of
            `CELLS_FROM` vectors and more are sought in the nearest cells alone, and some are missed.

    Raises:
        UsageError: There is no such device.
    """
    if len(vectors) >= CELLS_FROM:
        yield from _in_cells(vectors, None, least, most, device)
        return
    products = blocks(vectors, vectors, device)
    for rows in slices(0, len(vectors), _ROWS):
        columns = [*slices(0, rows.start, _COLUMNS), rows]
        yield from _among_all(vectors, vectors, products, rows, columns, least, most)


def near_references(
    vectors: Floats, others: Floats, least: float, most: int, device: Device = "cpu"
) -> Iterator[tuple[int, int, float]]:
    """Yield (other, one, cosine) of similar pairs, with a maximum number of ``others`` for each vector.

    Args:
        vectors: float32 [n, D], unit length.
        others: float32 [m, D], unit length.
        least: Minimum cosine.
        most: Maximum number of pairs per vector, as in `near_pairs`.
        device: Device of the products, as in `near_pairs`; there, cells are those of ``others``.
    """
    if len(others) >= CELLS_FROM:
        yield from _in_cells(vectors, others, least, most, device)
        return
    products = blocks(vectors, others, device)
    columns = list(slices(0, len(others), _COLUMNS))
    for rows in slices(0, len(vectors), _ROWS):
        yield from _among_all(vectors, others, products, rows, columns, least, most)


def _in_cells(
    vectors: Floats, others: Floats | None, least: float, most: int, device: Device
) -> Iterator[tuple[int, int, float]]:
    """Yield the nearest of the near cells for each vector, among ``others`` or among the vectors before it."""
    file = InvertedFile.of(vectors if others is None else others, device=device)
    for rows in slices(0, len(vectors), _ROWS_OF_CELLS):
        first = rows.start if others is None else None
        found = file.near(vectors[rows], least - SLACK, most, first=first)
        yield from _nearest(vectors, file.vectors, rows.start, found, least, most)


def _among_all(
    vectors: Floats,
    others: Floats,
    products: Blocks,
    rows: slice,
    columns: list[slice],
    least: float,
    most: int,
) -> Iterator[tuple[int, int, float]]:
    """Yield the nearest columns for each row; of rows compared with themselves only earlier ones."""
    found = []
    for part in columns:
        itself = part == rows and others is vectors
        # All later rows may be nearer than the earlier ones, so none may be cut off here.
        near = products.near(rows, part, least - SLACK, _ROWS if itself else most)
        if itself:
            near = near.kept(near.column < near.row)
        found.append(near._replace(column=near.column + part.start))
    yield from _nearest(vectors, others, rows.start, Nominated.joined(found), least, most)


def _nearest(
    vectors: Floats, others: Floats, first: int, nominated: Nominated, least: float, most: int
) -> Iterator[tuple[int, int, float]]:
    """Yield nominated pairs that reach ``least``, by ``later``, then by falling cosine, at most ``most`` of each."""
    nominated = nominated.strongest(most)
    later, earlier = nominated.row + first, nominated.column
    cosines = _cosines(vectors, others, later, earlier)
    order = np.lexsort((earlier, -cosines, later))
    given, last = 0, -1
    for place in order[cosines[order] >= least]:
        given = given + 1 if later[place] == last else 1
        last = int(later[place])
        if given <= most:
            yield int(earlier[place]), last, float(cosines[place])


def _cosines(vectors: Floats, others: Floats, later: Places, earlier: Places) -> NDArray[np.float64]:
    parts = [
        np.einsum("nd,nd->n", vectors[later[some]].astype(np.float64), others[earlier[some]])
        for some in slices(0, len(later), _AT_ONCE)
    ]
    return np.concatenate([np.zeros(0), *parts])
