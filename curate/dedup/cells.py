"""Cells of similar vectors: a vector is compared with those of the cells nearest to it instead of with all.

An inverted file (Sivic and Zisserman 2003; as in FAISS, Johnson et al. 2017) whose cells are those of k-means in two
levels, so that the time grows with the number of vectors and not with its square.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.dedup.kmeans import GRID, kmeans, on_grid
from reelweave.curate.dedup.products import Floats, IndexArray, Nominated, slices, strongest
from reelweave.curate.dedup.vector_file import Matrix, VectorFile, as_they_lie
from reelweave.curate.models.device import Device

CELL = 1024
"""Mean number of vectors in a cell."""
PROBES = 16
"""Number of cells whose vectors a vector is compared with."""
ITERATIONS = 10
"""Maximum number of iterations of k-means."""

_COARSE_PROBES, _FIRST_PROBES = 16, 2
_COARSE_SAMPLE, _FINE_SAMPLE = 256, 64  # vectors per centre that k-means looks at
_ROWS = 16_384
_AT_ONCE = 512  # rows that are compared with a cell together: their products stay in the processor's cache


@dataclass(frozen=True, eq=False)
class CellCentres:
    """Centres of cells, in two levels.

    Attributes:
        coarse: Centres of the first level, float32 [C, D].
        fine: Centres of the cells, those of a coarse centre one after the other, float32 [F, D].
        first: Number of the first cell of each coarse centre, and F, [C + 1].
    """

    coarse: Floats
    fine: Floats
    first: IndexArray

    @classmethod
    def of(
        cls, vectors: Matrix, cell: int | None = None, iterations: int = ITERATIONS, device: Device = "cpu"
    ) -> "CellCentres":
        """Divide vectors into cells.

        Args:
            vectors: Unit vectors [n, D], n at least 1.
            cell: Mean number of vectors in a cell; None: `CELL`.
            iterations: Maximum number of iterations of k-means.
            device: Device of k-means, as in `reelweave.curate.dedup.neighbours.near_pairs`.
        """
        cell = cell or CELL
        count = max(1, len(vectors) // cell)
        coarse_count = max(1, round(np.sqrt(count)))
        sample = _spread(np.arange(len(vectors)), _COARSE_SAMPLE * coarse_count)
        coarse, _ = kmeans(on_grid(vectors[sample]), coarse_count, iterations, device)
        owner = owners(vectors, cls(coarse, coarse, np.arange(coarse_count + 1)))
        used, fine = [], []
        for centre, members in group_by_label(owner):
            num_cells = max(1, round(len(members) / cell))
            some = on_grid(vectors[_spread(members, _FINE_SAMPLE * num_cells)])
            used.append(centre)
            fine.append(kmeans(some, num_cells, iterations, device)[0])
        return cls(coarse[used], np.concatenate(fine), np.cumsum([0, *map(len, fine)]))

    def nearest(self, vectors: Floats, count: int) -> IndexArray:
        """Return the cells nearest to vectors, [n, count], by falling cosine; -1 beyond the cells that there are."""
        vectors = on_grid(vectors)
        is_single_level = len(self.coarse) == len(self.fine)
        probed = _largest(vectors @ self.coarse.T, count if is_single_level else _COARSE_PROBES)
        if is_single_level:
            return probed
        values = np.full((len(vectors), count), -2, np.float32)  # less than any product
        cell_indices = np.full((len(vectors), count), -1, np.intp)
        for centre, at in group_by_label(probed.ravel()):
            rows = at // probed.shape[1]
            cells = np.arange(self.first[centre], self.first[centre + 1])
            products = np.concatenate([values[rows], vectors[rows] @ self.fine[cells].T], axis=1)
            named = np.concatenate(
                [cell_indices[rows], np.broadcast_to(cells, (len(rows), len(cells)))], axis=1
            )
            best = _largest(products, count)
            values[rows] = np.take_along_axis(products, best, axis=1)
            cell_indices[rows] = np.take_along_axis(named, best, axis=1)
        return cell_indices


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """Vectors sorted into cells, which nominates similar pairs.

    Attributes:
        cells: Division of them.
        members: Rising places of the vectors of each cell, one cell after the other, [m].
        starts: First of each cell in ``members``, and m, [F + 1].
        vectors: The vectors in the order of ``members``.
    """

    cells: CellCentres
    members: NDArray[np.int32]
    starts: IndexArray
    vectors: VectorFile

    @classmethod
    def of(cls, vectors: Matrix, cells: CellCentres) -> "InvertedFile":
        """Sort unit vectors [m, D] into cells."""
        owner = owners(vectors, cells)
        starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(cells.fine)))])
        members = np.argsort(owner, kind="stable").astype(np.int32)
        del owner
        position, file = np.empty_like(members), VectorFile()
        position[members] = np.arange(len(members))
        for rows in slices(0, len(vectors), _ROWS):
            order = np.argsort(position[rows])
            file.put(position[rows][order], vectors[rows].astype(vectors.dtype)[order])
        return cls(cells, members, starts, file)

    def near(
        self,
        vectors: Floats,
        min_cosine: float,
        max_neighbours: int,
        probes: int = PROBES,
        before: NDArray[np.int32] | None = None,
    ) -> Nominated:
        """Return products that reach ``min_cosine`` within the cells nearest to each row; columns are rows of the file.

        Args:
            vectors: float32 [n, D], unit length.
            min_cosine: Minimum product.
            max_neighbours: Number of largest products of each row that are sure to be among them.
            probes: Number of cells that a row is compared with.
            before: Place of each row, of which only members at lower places count, [n]; None: all count.
        """
        probed = self.cells.nearest(vectors, probes)
        # What the nearest cells hold bounds what can count of the others.
        nominated = self._within(
            probed[:, :_FIRST_PROBES], vectors, np.full(len(vectors), min_cosine), max_neighbours, before
        )
        bounds = np.maximum(nominated.bounds(max_neighbours, len(vectors)), min_cosine)
        return Nominated.concat(
            [nominated, self._within(probed[:, _FIRST_PROBES:], vectors, bounds, max_neighbours, before)]
        )

    def _within(
        self,
        probed: IndexArray,
        vectors: Floats,
        min_cosine: Floats,
        max_neighbours: int,
        before: NDArray[np.int32] | None,
    ) -> Nominated:
        nominations = []
        for cell, at in group_by_label(probed.ravel()):
            inside = slice(int(self.starts[cell]), int(self.starts[cell + 1]))
            rows, members, columns = at // probed.shape[1], self.members[inside], self.vectors[inside]
            if before is not None:
                rows = rows[np.argsort(before[rows], kind="stable")]
            for part in slices(0, len(rows), _AT_ONCE):
                some, first, last = rows[part], len(members), len(members)
                if before is not None:  # which of the cell's count for the first and for the last of some
                    first, last = np.searchsorted(members, before[some[[0, -1]]])
                products = vectors[some] @ columns[:last].T
                if before is not None:
                    late = products[:, first:]
                    late[members[first:last] >= before[some, None]] = -2  # less than any product
                near = strongest(products, min_cosine[some, None], max_neighbours)
                nominations.append(Nominated(some[near.row], inside.start + near.column, near.product))
        return Nominated.concat(nominations)


def group_by_label(labels: IndexArray) -> Iterator[tuple[int, IndexArray]]:
    """Yield each label but -1, rising, with the rising places where it occurs."""
    order = np.argsort(labels, kind="stable")
    order = order[np.searchsorted(labels[order], 0) :]
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    for start, end in zip(starts, np.append(starts, len(order))[1:], strict=True):
        yield int(labels[order[start]]), order[start:end]


def owners(vectors: Matrix, cells: CellCentres) -> NDArray[np.int32]:
    """Return the cell of each vector, [n]."""
    cell_of_row = np.empty(len(vectors), np.int32)
    for rows in as_they_lie(vectors, _ROWS):
        cell_of_row[rows] = cells.nearest(vectors[rows], 1)[:, 0]
    return cell_of_row


def _spread(members: IndexArray, max_count: int) -> IndexArray:
    """Return at most so many places, spaced evenly."""
    return members[np.linspace(0, len(members) - 1, min(max_count, len(members))).astype(np.intp)]


def _largest(products: Floats, count: int) -> IndexArray:
    """Return the columns of the largest products of each row, by falling product, the first of equal ones first.

    Products are multiples of 1 / GRID^2, so that product and column fit one whole number: no two are equal.
    """
    width = products.shape[1]
    ranks = (products * GRID**2).astype(np.int64) * width - np.arange(width)
    if width > count:
        best = np.argpartition(ranks, width - count, axis=1)[:, width - count :]
        ranks = np.take_along_axis(ranks, best, axis=1)
    else:
        best = np.broadcast_to(np.arange(width), products.shape)
    best = np.take_along_axis(best, np.argsort(-ranks, axis=1), axis=1)
    return np.pad(best, ((0, 0), (0, max(0, count - width))), constant_values=-1)
