"""Inner products of many vectors, block by block, on a CPU or a GPU."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.models.device import Device, pick_device

Floats = NDArray[np.float32]
IndexArray = NDArray[np.intp] | NDArray[np.int32]

SLACK = 1e-4
"""Bound on the error of a 32-bit product."""

_ROWS = 1024
_GPU_PAYS_FROM = 20_000  # number of vectors below which starting CUDA takes longer than the products


class Nominated(NamedTuple):
    """Large products of two matrices.

    Attributes:
        row: Row of each, [p].
        column: Column of each, [p].
        product: Float32 [p].
    """

    row: IndexArray
    column: IndexArray
    product: Floats

    @classmethod
    def concat(cls, parts: Sequence["Nominated"]) -> "Nominated":
        """Return all products of several parts."""
        none = cls(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0, np.float32))
        return cls(*(np.concatenate(columns) for columns in zip(none, *parts, strict=True)))

    def select(self, which: NDArray[np.bool_] | IndexArray) -> "Nominated":
        """Return the products at some places."""
        return Nominated(self.row[which], self.column[which], self.product[which])

    def strongest(self, max_neighbours: int) -> "Nominated":
        """Leave out what cannot be among the ``max_neighbours`` largest of its row, each off by `SLACK` at most."""
        return self.select(
            self.product >= self.bounds(max_neighbours, int(self.row.max(initial=0)) + 1)[self.row]
        )

    def bounds(self, max_neighbours: int, rows: int) -> Floats:
        """Return the least product among the ``max_neighbours`` largest of each row, [rows]; -1: it has fewer."""
        order = np.lexsort((-self.product, self.row))
        starts = np.searchsorted(self.row[order], np.arange(rows + 1))
        full = np.flatnonzero(np.diff(starts) >= max_neighbours)
        bounds = np.full(rows, -1, np.float32)
        bounds[full] = self.product[order[starts[full] + max_neighbours - 1]] - 2 * SLACK
        return bounds


class Blocks(Protocol):
    """Products of one matrix with another, block by block."""

    def near(self, rows: slice, columns: slice, min_cosine: float, max_neighbours: int) -> Nominated:
        """Return products in the block that reach ``min_cosine``, at most the ``max_neighbours`` largest per row."""

    def best(self, rows: slice) -> IndexArray:
        """Return the column of the largest product of each row."""


class CpuBlocks:
    """Products of blocks of vectors by numpy, on a processor."""

    def __init__(self, rows: Floats, columns: Floats) -> None:
        self._rows, self._columns = rows, columns

    def near(self, rows: slice, columns: slice, min_cosine: float, max_neighbours: int) -> Nominated:
        return strongest(self._rows[rows] @ self._columns[columns].T, min_cosine, max_neighbours)

    def best(self, rows: slice) -> IndexArray:
        return np.asarray(np.argmax(self._rows[rows] @ self._columns.T, axis=1))


class TorchBlocks:
    """Products by torch; all vectors are in the memory of the device."""

    def __init__(self, rows: Floats, columns: Floats, device: str) -> None:
        import torch

        self._rows = torch.from_numpy(rows).to(device)
        self._columns = self._rows if columns is rows else torch.from_numpy(columns).to(device)

    def near(self, rows: slice, columns: slice, min_cosine: float, max_neighbours: int) -> Nominated:
        products = self._rows[rows] @ self._columns[columns].T
        values, column = products.topk(min(max_neighbours, products.shape[1]), dim=1)
        row, rank = (values >= min_cosine).nonzero(as_tuple=True)
        return Nominated(row.cpu().numpy(), column[row, rank].cpu().numpy(), values[row, rank].cpu().numpy())

    def best(self, rows: slice) -> IndexArray:
        return np.asarray((self._rows[rows] @ self._columns.T).argmax(dim=1).cpu().numpy(), np.intp)


def blocks(rows: Floats, columns: Floats, device: Device) -> Blocks:
    """Return products of ``rows`` with ``columns``, on a GPU where it pays.

    Raises:
        UsageError: There is no such device.
    """
    if device == "cpu" or (device == "auto" and len(rows) < _GPU_PAYS_FROM):
        return CpuBlocks(rows, columns)
    picked = pick_device(device)
    return CpuBlocks(rows, columns) if picked == "cpu" else TorchBlocks(rows, columns, picked)


def strongest(products: Floats, min_cosine: float | Floats, max_neighbours: int) -> Nominated:
    """Return the products that reach ``min_cosine``, with the ``max_neighbours`` largest per row at most."""
    row, column = np.nonzero(products >= min_cosine)
    crowded = np.flatnonzero(np.bincount(row, minlength=len(products)) > max_neighbours)
    if len(crowded):
        largest = np.argpartition(products[crowded], -max_neighbours, axis=1)[:, -max_neighbours:]
        calm = ~np.isin(row, crowded)
        row = np.concatenate([row[calm], np.repeat(crowded, max_neighbours)])
        column = np.concatenate([column[calm], largest.ravel()])
    return Nominated(row, column, products[row, column])


def nearest_centre(vectors: Floats, centres: Floats, device: Device = "cpu") -> IndexArray:
    """Return the centre with the largest inner product for each vector, [n]; the first of equal ones."""
    products = blocks(vectors, centres, device)
    return np.concatenate([products.best(rows) for rows in slices(0, len(vectors), _ROWS)])


def slices(first: int, last: int, step: int) -> Iterator[slice]:
    """Divide a range into slices of at most ``step``."""
    return (slice(start, min(start + step, last)) for start in range(first, last, step))
