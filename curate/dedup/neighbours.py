"""Neighbour search by cosine similarity, in memory independent of the number of vectors.

Products nominate pairs: all of them for few vectors, those within near cells for many. The cosine of a pair is
computed separately in 64 bits, so that neighbours do not depend on the device.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.dedup.cells import CellCentres, InvertedFile
from reelweave.curate.dedup.products import SLACK, Blocks, Floats, IndexArray, Nominated, blocks, slices
from reelweave.curate.dedup.vector_file import Matrix
from reelweave.curate.models.device import Device
from reelweave.loader.dataset.tables.row_parts import RowParts

CELLS_FROM = 50_000
"""Number of vectors from which they are compared within near cells alone, whatever the device."""

_ROWS, _COLUMNS = 1024, 16384  # size of a block: 67 MB
_ROWS_OF_CELLS = 24_576  # 26 MB as float32, which an allocator keeps
_AT_ONCE = 4096  # batch of cosines in 64 bits
_PART = 65_536  # vectors whose pairs lie together on disk


class Pairs(NamedTuple):
    """Pairs of similar vectors, as columns [p].

    Attributes:
        earlier: Place of one.
        later: Place of the other.
        cosine: Its value in 64 bits.
    """

    earlier: IndexArray
    later: IndexArray
    cosine: NDArray[np.float64]

    def each(self) -> Iterator[tuple[int, int, float]]:
        """Yield one after the other; few of them are Python's at a time."""
        for some in slices(0, len(self.later), _AT_ONCE):
            yield from zip(*(column[some].tolist() for column in self), strict=True)


_PAIRS = pa.schema({"earlier": pa.int32(), "later": pa.int32(), "cosine": pa.float64()})


def near_pairs(
    vectors: Matrix, min_cosine: float, max_neighbours: int, device: Device = "cpu"
) -> Iterator[tuple[int, int, float]]:
    """Yield (earlier, later, cosine) of similar pairs, with a maximum number of earlier ones for each later one.

    Args:
        vectors: Unit vectors [n, D].
        min_cosine: Minimum cosine.
        max_neighbours: Maximum number of pairs per ``later``; the nearest, ordered by ``later``, then by falling
            cosine.
        device: Device of the products of few vectors; auto is a GPU where there is one and enough work. Pairs of
            `CELLS_FROM` vectors and more are sought in the nearest cells alone, and some are missed.

    Raises:
        UsageError: There is no such device.
    """
    if len(vectors) >= CELLS_FROM:
        yield from _in_cells(vectors, None, min_cosine, max_neighbours, device)
        return
    all_vectors = vectors[:]
    products = blocks(all_vectors, all_vectors, device)
    for rows in slices(0, len(all_vectors), _ROWS):
        columns = [*slices(0, rows.start, _COLUMNS), rows]
        yield from _among_all(
            all_vectors, all_vectors, products, rows, columns, min_cosine, max_neighbours
        ).each()


def near_references(
    vectors: Matrix, references: Matrix, min_cosine: float, max_neighbours: int, device: Device = "cpu"
) -> Iterator[tuple[int, int, float]]:
    """Yield (other, one, cosine) of similar pairs, with a maximum number of ``references`` for each vector.

    Args:
        vectors: Unit vectors [n, D].
        references: Unit vectors [m, D].
        min_cosine: Minimum cosine.
        max_neighbours: Maximum number of pairs per vector, as in `near_pairs`.
        device: Device of the products, as in `near_pairs`; there, cells are those of ``references``.
    """
    if len(references) >= CELLS_FROM:
        yield from _in_cells(vectors, references, min_cosine, max_neighbours, device)
        return
    all_references = references[:]
    columns = list(slices(0, len(all_references), _COLUMNS))
    for part in slices(0, len(vectors), _ROWS_OF_CELLS):
        some = vectors[part]
        products = blocks(some, all_references, device)
        for rows in slices(0, len(some), _ROWS):
            pairs = _among_all(some, all_references, products, rows, columns, min_cosine, max_neighbours)
            yield from pairs._replace(later=pairs.later + part.start).each()


def _in_cells(
    vectors: Matrix, references: Matrix | None, min_cosine: float, max_neighbours: int, device: Device
) -> Iterator[tuple[int, int, float]]:
    """Yield the nearest of the near cells for each vector, among ``references`` or among the vectors before it."""
    among = vectors if references is None else references
    file = InvertedFile.of(among, CellCentres.of(among, device=device))
    queries = None if references is None else InvertedFile.of(vectors, file.cells)
    yield from _pairs_in_cells(
        file, queries, slices(0, len(vectors), _ROWS_OF_CELLS), min_cosine, max_neighbours
    )


def _pairs_in_cells(
    file: InvertedFile,
    queries: InvertedFile | None,
    parts: Iterable[slice],
    min_cosine: float,
    max_neighbours: int,
) -> Iterator[tuple[int, int, float]]:
    """Yield the pairs of parts of vectors, part by part in the order of cells: neighbours ask for the same cells.

    Pairs wait on disk until they are put in order.

    Args:
        file: Vectors to compare with.
        queries: Vectors to compare, in the same cells; None: those of ``file``, each with those before it.
        parts: Rows of ``queries``.
        min_cosine: Minimum cosine.
        max_neighbours: Maximum number of pairs per vector.
    """
    query_file = file if queries is None else queries
    with RowParts(_PAIRS, -(-len(query_file.members) // _PART) or 1) as pair_parts:
        for rows in parts:
            vectors, members = query_file.vectors[rows], query_file.members[rows]
            near = file.near(
                vectors, min_cosine - SLACK, max_neighbours, before=members if queries is None else None
            )
            pairs = _nearest(vectors, file.vectors, near, file.members, min_cosine, max_neighbours)
            later = members[pairs.later]
            pair_parts.add(
                pa.table([file.members[pairs.earlier], later, pairs.cosine], _PAIRS), later // _PART
            )
        for part in range(pair_parts.parts):
            earlier, later, cosine = (column.to_numpy() for column in pair_parts.read(part).columns)
            order = np.argsort(later, kind="stable")
            yield from Pairs(earlier[order], later[order], cosine[order]).each()


def _among_all(
    vectors: Floats,
    references: Floats,
    products: Blocks,
    rows: slice,
    columns: list[slice],
    min_cosine: float,
    max_neighbours: int,
) -> Pairs:
    """Return the nearest columns for each row; of rows compared with themselves only earlier ones."""
    nominations = []
    for part in columns:
        itself = part == rows and references is vectors
        # All later rows may be nearer than the earlier ones, so none may be cut off here.
        near = products.near(rows, part, min_cosine - SLACK, _ROWS if itself else max_neighbours)
        if itself:
            near = near.select(near.column < near.row)
        nominations.append(near._replace(column=near.column + part.start))
    pairs = _nearest(
        vectors[rows], references, Nominated.concat(nominations), None, min_cosine, max_neighbours
    )
    return pairs._replace(later=pairs.later + rows.start)


def _nearest(
    vectors: Floats,
    references: Matrix,
    nominated: Nominated,
    members: NDArray[np.int32] | None,
    min_cosine: float,
    max_neighbours: int,
) -> Pairs:
    """Return nominated pairs that reach ``min_cosine``, at most ``max_neighbours`` a row, by row and falling cosine.

    Args:
        vectors: Rows of ``nominated``.
        references: Its columns.
        nominated: Rows and columns to look at.
        members: Index of each column by which equal cosines are ordered; None: the column itself.
        min_cosine: Minimum cosine.
        max_neighbours: Maximum number of pairs per row.
    """
    nominated = nominated.strongest(max_neighbours)
    row, column = nominated.row, nominated.column
    cosines = _cosines(vectors, references, row, column)
    order = np.lexsort((column if members is None else members[column], -cosines, row))
    order = order[cosines[order] >= min_cosine]
    firsts = np.flatnonzero(np.diff(row[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(firsts, np.diff(firsts, append=len(order)))
    order = order[rank < max_neighbours]
    return Pairs(column[order], row[order], cosines[order])


def _cosines(
    vectors: Floats, references: Matrix, rows: IndexArray, columns: IndexArray
) -> NDArray[np.float64]:
    """Return the cosines of pairs; each column is read once, and those that lie together are read together."""
    cosines = np.empty(len(rows))
    order = np.argsort(columns, kind="stable")
    for part in slices(0, len(rows), _AT_ONCE):
        some = order[part]
        cosines[some] = np.einsum(
            "nd,nd->n", vectors[rows[some]].astype(np.float64), references[columns[some]].astype(np.float64)
        )
    return cosines
