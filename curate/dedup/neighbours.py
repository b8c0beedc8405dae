"""Neighbour search by cosine similarity, in memory independent of the number of vectors.

Blocks of a matrix product nominate pairs, on a CPU or a GPU. The cosine of a pair is computed separately in
64 bits, so that neighbours do not depend on the device.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from curate.models.device import Device, pick_device

Floats = NDArray[np.float32]
Places = NDArray[np.intp]

_ROWS, _COLUMNS = 1024, 16384  # size of a block: 67 MB
_SLACK = 1e-4  # bound on the error of a 32-bit product
_GPU_PAYS_FROM = 20_000  # number of vectors below which starting CUDA takes longer than the products
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
        device: Device of the products; auto is a GPU where there is one and enough work.

    Raises:
        UsageError: There is no such device.
    """
    blocks = _blocks(vectors, vectors, device)
    for rows in _slices(0, len(vectors), _ROWS):
        columns = [*_slices(0, rows.start, _COLUMNS), rows]
        yield from _nearest(vectors, vectors, blocks, rows, columns, least, most)


def near_references(
    vectors: Floats, others: Floats, least: float, most: int, device: Device = "cpu"
) -> Iterator[tuple[int, int, float]]:
    """Yield (other, one, cosine) of similar pairs, with a maximum number of ``others`` for each vector.

    Args:
        vectors: float32 [n, D], unit length.
        others: float32 [m, D], unit length.
        least: Minimum cosine.
        most: Maximum number of pairs per vector, as in `near_pairs`.
        device: Device of the products, as in `near_pairs`.
    """
    blocks = _blocks(vectors, others, device)
    columns = list(_slices(0, len(others), _COLUMNS))
    for rows in _slices(0, len(vectors), _ROWS):
        yield from _nearest(vectors, others, blocks, rows, columns, least, most)


def nearest_centre(vectors: Floats, centres: Floats, device: Device = "cpu") -> Places:
    """Return the centre with the largest inner product for each vector, [n]; the first of equal ones."""
    blocks = _blocks(vectors, centres, device)
    return np.concatenate([blocks.best(rows) for rows in _slices(0, len(vectors), _ROWS)])


class _Blocks(Protocol):
    """Products of one matrix with another, block by block."""

    def near(self, rows: slice, columns: slice, least: float, most: int) -> tuple[Places, Places]:
        """Return (row, column) within the block of products >= ``least``, with the ``most`` largest per row at most."""

    def best(self, rows: slice) -> Places:
        """Return the column of the largest product of each row."""


class _OnCpu:
    def __init__(self, rows: Floats, columns: Floats) -> None:
        self._rows, self._columns = rows, columns

    def near(self, rows: slice, columns: slice, least: float, most: int) -> tuple[Places, Places]:
        products = self._rows[rows] @ self._columns[columns].T
        found, place = np.nonzero(products >= least)
        crowded = np.flatnonzero(np.bincount(found, minlength=len(products)) > most)
        if len(crowded):
            largest = np.argpartition(products[crowded], -most, axis=1)[:, -most:]
            calm = ~np.isin(found, crowded)
            found = np.concatenate([found[calm], np.repeat(crowded, most)])
            place = np.concatenate([place[calm], largest.ravel()])
        return found, place

    def best(self, rows: slice) -> Places:
        return np.asarray(np.argmax(self._rows[rows] @ self._columns.T, axis=1))


class TorchBlocks:
    """`_Blocks` with torch; all vectors are in the memory of the device."""

    def __init__(self, rows: Floats, columns: Floats, device: str) -> None:
        import torch

        self._rows = torch.from_numpy(rows).to(device)
        self._columns = self._rows if columns is rows else torch.from_numpy(columns).to(device)

    def near(self, rows: slice, columns: slice, least: float, most: int) -> tuple[Places, Places]:
        products = self._rows[rows] @ self._columns[columns].T
        values, place = products.topk(min(most, products.shape[1]), dim=1)
        found, rank = (values >= least).nonzero(as_tuple=True)
        return found.cpu().numpy(), place[found, rank].cpu().numpy()

    def best(self, rows: slice) -> Places:
        return np.asarray((self._rows[rows] @ self._columns.T).argmax(dim=1).cpu().numpy(), np.intp)


def _blocks(rows: Floats, columns: Floats, device: Device) -> _Blocks:
    if device == "cpu" or (device == "auto" and len(rows) < _GPU_PAYS_FROM):
        return _OnCpu(rows, columns)
    picked = pick_device(device)
    return _OnCpu(rows, columns) if picked == "cpu" else TorchBlocks(rows, columns, picked)


def _nearest(
    vectors: Floats,
    others: Floats,
    blocks: _Blocks,
    rows: slice,
    columns: list[slice],
    least: float,
    most: int,
) -> Iterator[tuple[int, int, float]]:
    """Yield the nearest columns for each row; of rows compared with themselves only earlier ones."""
    found: list[tuple[Places, Places]] = [(np.zeros(0, np.intp), np.zeros(0, np.intp))]
    for part in columns:
        itself = part == rows and others is vectors
        # All later rows may be nearer than the earlier ones, so none may be cut off here.
        row, column = blocks.near(rows, part, least - _SLACK, _ROWS if itself else most)
        earlier = column < row if itself else np.ones(len(row), bool)
        found.append((row[earlier] + rows.start, column[earlier] + part.start))
    later, earlier_ones = (np.concatenate(parts) for parts in zip(*found, strict=True))
    cosines = _cosines(vectors, others, later, earlier_ones)
    order = np.lexsort((earlier_ones, -cosines, later))
    given, last = 0, -1
    for place in order[cosines[order] >= least]:
        given = given + 1 if later[place] == last else 1
        last = int(later[place])
        if given <= most:
            yield int(earlier_ones[place]), last, float(cosines[place])


def _cosines(vectors: Floats, others: Floats, later: Places, earlier: Places) -> NDArray[np.float64]:
    parts = [
        np.einsum("nd,nd->n", vectors[later[some]].astype(np.float64), others[earlier[some]])
        for some in _slices(0, len(later), _AT_ONCE)
    ]
    return np.concatenate([np.zeros(0), *parts])


def _slices(first: int, last: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, last)) for start in range(first, last, step))
