"""Search index: vectors sorted into cells, of which a query reads the nearest ones alone.

An inverted file (Sivic and Zisserman 2003; as in FAISS, Johnson et al. 2017). It lies in the dataset's folder
``.search/``, under the digest of the index that it was made of; a later revision removes it.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.dedup.cells import CellCentres
from reelweave.curate.search.vectors import MEMBER, Vector, read_vectors
from reelweave.loader.dataset import Dataset, read_manifest
from reelweave.loader.dataset.manifest import SEARCH, Manifest, search_folder
from reelweave.loader.dataset.tables.row_parts import RowParts, part_count
from reelweave.loader.dataset.tars.members import members
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import Storage
from reelweave.loader.storage.scratch import Scratch

PROBES = 32
"""Number of cells that a query reads."""

_CELL = 1024  # mean number of vectors in a cell, while there are fewer than `_MOST_CELLS`
_MOST_CELLS = 1 << 15
_SAMPLE = 64  # vectors that a cell's centre is made of
_VERSION = 1
_MAX_HEADER_BYTES = 1 << 16
_FILES = HEADER, CELLS, ROWS, VECTORS = "search.json", "cells.bin", "rows.bin", "vectors.bin"


@dataclass(frozen=True)
class CellFile:
    """Search index of one revision of a dataset.

    Attributes:
        storage: Storage of the dataset.
        folder: Place of the files.
        cells: Centres of the cells.
        starts: First vector of each cell, and the number of vectors, [F + 1].
        dtype: Type of the vectors.
    """

    storage: Storage
    folder: str
    cells: CellCentres
    starts: NDArray[np.int64]
    dtype: np.dtype[Any]

    @classmethod
    def open(cls, storage: Storage, manifest: Manifest) -> "CellFile | None":
        """Return the search index of a dataset's revision; None if there is none.

        Raises:
            RunError: It is damaged.
        """
        folder = search_folder(manifest.index_sha256)
        try:
            header = json.loads(storage.read(folder + HEADER, 0, _MAX_HEADER_BYTES))
            if header["version"] != _VERSION:
                return None
            # The header says how large the other files are, and what is in them.
            width, coarse, fine, count = (
                int(header[name]) for name in ("width", "coarse", "fine", "vectors")
            )
            dtype = np.dtype({"float16": np.float16, "float32": np.float32}[header["dtype"]])
            size = 4 * width * (coarse + fine) + 8 * (coarse + 1) + 8 * (fine + 1)
            data = storage.read(folder + CELLS, 0, size + 1)
            sizes = [info.size if (info := storage.stat(folder + name)) else -1 for name in (ROWS, VECTORS)]
            if (
                min(width, coarse, fine, count) < 1
                or hashlib.sha256(data).hexdigest() != header["cells_sha256"]
                or len(data) != size
                or sizes != [8 * count, count * width * dtype.itemsize]
            ):
                raise ValueError
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{storage.uri(folder)} is damaged; make it again with `reelweave search DATASET --index`"
            ) from error
        # Centres of both levels, then the bounds of the cells of each.
        centres = np.frombuffer(data, np.float32, width * (coarse + fine)).reshape(-1, width)
        offsets = np.frombuffer(data, np.int64, offset=centres.nbytes)
        cells = CellCentres(centres[:coarse], centres[coarse:], offsets[: coarse + 1].astype(np.intp))
        return cls(storage, folder, cells, offsets[coarse + 1 :], dtype)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def width(self) -> int:
        """Dimension D of the vectors."""
        return int(self.cells.fine.shape[1])

    def nearest(
        self, query: NDArray[np.float32], top: int, probes: int = PROBES
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return rows of the index and cosines of the nearest vectors in the nearest cells; equal ones by row.

        Args:
            query: Vector of unit length, [D].
            top: Number of vectors.
            probes: Number of cells.
        """
        nearest_cells = self.cells.nearest(query[None], probes)[0]
        cells = np.sort(nearest_cells[nearest_cells >= 0])
        rows, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for first, last in _join_ranges(self.starts[cells], self.starts[cells + 1]):
            size = self.width * self.dtype.itemsize
            data = self.storage.read(self.folder + VECTORS, first * size, (last - first) * size)
            vectors = np.frombuffer(data, self.dtype).reshape(-1, self.width)
            of_cell = vectors.astype(np.float32) @ query
            some = _largest(of_cell, top)
            row_indices = np.frombuffer(
                self.storage.read(self.folder + ROWS, first * 8, (last - first) * 8), np.int64
            )
            rows.append(row_indices[some])
            scores.append(of_cell[some])
        row_N, score_N = np.concatenate(rows), np.concatenate(scores)
        best = np.lexsort((row_N, -score_N))[:top]
        return row_N[best], score_N[best]


def _join_ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of cells, those that touch each other as one."""
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    for some in np.split(np.arange(len(starts)), breaks):
        if len(some) and ends[some[-1]] > starts[some[0]]:
            yield int(starts[some[0]]), int(ends[some[-1]])


def _largest(scores: NDArray[np.float32], top: int) -> NDArray[np.intp]:
    """Return the places of the largest scores, with all that equal the least of them."""
    if len(scores) <= top:
        return np.arange(len(scores))
    min_score = np.partition(scores, len(scores) - top)[len(scores) - top]
    return np.flatnonzero(scores >= min_score)


def make_search_index(dataset: Dataset) -> CellFile:
    """Make the search index of a dataset from its stored embeddings, in bounded memory, and drop older ones.

    Raises:
        UsageError: The dataset has no embeddings.
        RunError: An embedding is damaged, or the dataset was changed meanwhile.
    """
    storage, folder = dataset.storage, search_folder(dataset.manifest.index_sha256)
    storage.delete_tree(SEARCH)
    rows_N = _rows(dataset)
    if not len(rows_N):
        raise UsageError(
            f"{storage.root} holds no video embeddings; curate it again with another embed.backend"
        )
    write_cells(storage, folder, len(rows_N), lambda some: _vectors(dataset, some), dataset.manifest)
    index = CellFile.open(storage, dataset.manifest)
    if index is None or read_manifest(storage) != dataset.manifest:
        # What was taken down meanwhile must not stay here.
        storage.delete_tree(folder)
        raise RunError(f"{storage.root} was changed meanwhile; run the same command again")
    return index


def write_cells(
    storage: Storage,
    folder: str,
    count: int,
    read: Callable[[int], Iterator[tuple[NDArray[np.int64], Vector]]],
    manifest: Manifest | None = None,
) -> None:
    """Sort vectors into cells, and write them with their rows; the header last.

    Args:
        storage: Storage of the dataset.
        folder: Place of the files.
        count: Number of vectors.
        read: Function that reads every n-th vector by parts: rows of the index, rising, and vectors [n, D].
        manifest: Manifest that must be unchanged before the header is written; None: it is not read.
    """
    # Centres from a sample of the vectors.
    num_cells = min(max(1, count // _CELL), _MOST_CELLS)
    stride = max(1, count // (_SAMPLE * num_cells))
    sample = np.concatenate([vectors.astype(np.float32) for _, vectors in read(stride)])
    cells = CellCentres.of(sample, max(1, len(sample) // num_cells))
    del sample
    dtype, width = np.dtype(np.float16), cells.fine.shape[1]
    parts, sizes = part_count(count), np.zeros(len(cells.fine), np.int64)
    with (
        Scratch("reelweave-search-") as name,
        _partitions(width, parts) as sorted_rows,
    ):
        # All vectors to partitions on disk by their nearest cell, so that one partition at a time is in
        # memory.
        for rows, vectors in read(1):
            dtype = np.promote_types(dtype, vectors.dtype)
            owner = cells.nearest(vectors.astype(np.float32), 1)[:, 0]
            sizes += np.bincount(owner, minlength=len(sizes))
            flat = pa.array(vectors.astype(np.float32).reshape(-1))
            columns = [pa.array(rows), pa.array(owner), pa.FixedSizeListArray.from_arrays(flat, width)]
            table = pa.Table.from_arrays(columns, ["row", "cell", "vector"])
            sorted_rows.add(table, owner * parts // len(cells.fine))
        # Each partition in order of cell and row: the files are then whole cells, one after the other.
        paths = {file: Path(name) / file for file in (ROWS, VECTORS)}
        with paths[ROWS].open("wb") as of_rows, paths[VECTORS].open("wb") as of_vectors:
            for part in range(parts):
                table = sorted_rows.read(part).combine_chunks()
                order = np.lexsort((table.column("row").to_numpy(), table.column("cell").to_numpy()))
                of_rows.write(table.column("row").to_numpy()[order].tobytes())
                matrix = _matrix(table, width)
                for first in range(0, len(order), 1 << 14):
                    of_vectors.write(matrix[order[first : first + (1 << 14)]].astype(dtype).tobytes())
        for file, path in paths.items():
            storage.write_file(folder + file, path)
    # Centres and the first row of each cell; the header last, since it makes the index valid.
    starts = np.concatenate([[0], np.cumsum(sizes)])
    data = b"".join(
        part.tobytes()
        for part in (cells.coarse, cells.fine, cells.first.astype(np.int64), starts.astype(np.int64))
    )
    storage.write(folder + CELLS, data)
    header = {
        "version": _VERSION,
        "vectors": count,
        "width": width,
        "dtype": dtype.name,
        "coarse": len(cells.coarse),
        "fine": len(cells.fine),
        "cells_sha256": hashlib.sha256(data).hexdigest(),
    }
    if manifest is None or read_manifest(storage) == manifest:
        storage.write(folder + HEADER, json.dumps(header, indent=1).encode())


def _partitions(width: int, parts: int) -> RowParts:
    vector = pa.list_(pa.float32(), width)
    return RowParts(pa.schema([("row", pa.int64()), ("cell", pa.int64()), ("vector", vector)]), parts)


def _matrix(table: pa.Table, width: int) -> NDArray[np.float32]:
    chunks = [chunk.flatten().to_numpy().reshape(-1, width) for chunk in table.column("vector").chunks]
    return np.concatenate([np.zeros((0, width), np.float32), *chunks])


def _rows(dataset: Dataset) -> NDArray[np.int64]:
    """Return the rows of the index with an embedding."""
    row_blocks, first = [np.zeros(0, np.int64)], 0
    for table in dataset.table_parts("index", ["shard", "members"]):
        row_blocks.append(first + members(table, MEMBER).rows())
        first += len(table)
    return np.concatenate(row_blocks)


def _vectors(dataset: Dataset, stride: int) -> Iterator[tuple[NDArray[np.int64], Vector]]:
    """Yield every n-th embedding by parts of the index, with its row."""
    first, num_seen, like = 0, 0, None
    for table in dataset.table_parts("index", ["shard", "members"]):
        member_files = members(table, MEMBER)
        rows = member_files.rows()
        chosen = rows[(num_seen + np.arange(len(rows))) % stride == 0]
        num_seen += len(rows)
        if len(chosen):
            vectors = read_vectors(dataset, member_files, chosen, first, like)
            like = vectors[0]
            yield first + chosen, vectors
        first += len(table)
