"""Search by an inverted file: recall against all vectors, milliseconds a query, and time and memory to make it.

    python -m tests.bench.search_scale [--vectors 100000 1000000] [--width 512] [--faiss FOLDER]

Vectors are drawn about centres that are themselves drawn about others, as kinds of clips lie near to each other; a
query is another vector of the same kinds. FAISS (an IVF of as many cells, trained on as many vectors, float16) is the
peer where it can be imported; ``--faiss`` names a folder that holds it. One thread each.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.search.cell_file import _SAMPLE, CellFile, write_cells
from reelweave.loader.dataset.manifest import search_folder
from reelweave.loader.storage import open_storage
from tests.bench.big_index import status

QUERIES, TOP, PART = 200, 10, 1 << 15
INDEX = "ab" * 32


def vectors_of(first: int, count: int, width: int) -> NDArray[np.float16]:
    """Return unit vectors: a kind of 200, one of its 50 sorts, and noise."""
    drawn = np.random.default_rng(first)
    kinds = np.random.default_rng(1).normal(size=(200, width)).astype(np.float32)
    sorts = np.random.default_rng(2).normal(size=(10_000, width)).astype(np.float32)
    which = drawn.integers(0, 10_000, count)
    found = (
        kinds[which // 50] + 0.7 * sorts[which] + 0.7 * drawn.normal(size=(count, width)).astype(np.float32)
    )
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float16)


def batches(count: int, width: int, every: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float16]]]:
    """Yield every n-th vector by parts."""
    for first in range(0, count, PART):
        rows = np.arange(first, min(first + PART, count))
        some = rows[rows % every == 0]
        yield some, vectors_of(first, len(rows), width)[some - first]


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result and the processor seconds of this process."""
    began = time.process_time()
    return run(), time.process_time() - began


def main(arguments: list[str] | None = None) -> int:
    """Print a JSON line for each number of vectors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, nargs="+", default=[100_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--probes", type=int, nargs="+", default=[8, 32, 128])
    parser.add_argument("--faiss", default=None)
    options = parser.parse_args(arguments)
    if options.faiss:
        sys.path.insert(0, options.faiss)
    for count in options.vectors:
        print(json.dumps(measured(count, options.width, options.probes)), flush=True)
    return 0


def measured(count: int, width: int, probes: list[int]) -> dict[str, Any]:
    """Make the index, and ask it."""
    queries = vectors_of(0, QUERIES, width).astype(np.float32)
    queries += 0.5 / width**0.5 * np.random.default_rng(3).normal(size=queries.shape).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found: dict[str, Any] = {"vectors": count, "width": width}
    with tempfile.TemporaryDirectory(prefix="reelweave-search-") as name:
        storage, before = open_storage(Path(name)), status("VmHWM")
        read = lambda every: batches(count, width, every)  # noqa: E731
        _, making_s = timed(lambda: sum(len(rows) for rows, _ in read(1)))
        _, seconds = timed(lambda: write_cells(storage, search_folder(INDEX), count, read))
        found["make_us_per_vector"] = round((seconds - 2 * making_s) / count * 1e6, 1)
        found["make_peak_gib"] = round((status("VmHWM") - before) / 2**30, 2)
        file = opened(storage)
        found["cells"] = len(file.cells.fine)
        truth, seconds = timed(lambda: exhaustive(file, queries))
        found["all_ms"] = round(seconds / QUERIES * 1e3, 2)
        for number in probes:
            hits, seconds = timed(lambda: [file.nearest(one, TOP, number)[0] for one in queries])  # noqa: B023
            found[f"probes_{number}"] = [recall(hits, truth), round(seconds / QUERIES * 1e3, 2)]
        found["faiss"] = peer(file, queries, truth, probes)
    return found


def opened(storage: Any) -> CellFile:
    """Open the made index."""

    class _Manifest:
        index_sha256 = INDEX

    file = CellFile.open(storage, _Manifest())  # type: ignore[arg-type]
    assert file is not None
    return file


def parts_of_file(file: CellFile) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield all rows and vectors of an index."""
    size = file.width * file.dtype.itemsize
    for first in range(0, len(file), PART):
        last = min(first + PART, len(file))
        data = file.storage.read(f"{file.folder}vectors.bin", first * size, (last - first) * size)
        rows = np.frombuffer(
            file.storage.read(f"{file.folder}rows.bin", first * 8, (last - first) * 8), np.int64
        )
        yield rows, np.frombuffer(data, file.dtype).reshape(-1, file.width).astype(np.float32)


def exhaustive(file: CellFile, queries: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the nearest rows of each query among all vectors."""
    rows = np.full((len(queries), TOP), -1, np.int64)
    best = np.full((len(queries), TOP), -2, np.float32)
    for numbers, vectors in parts_of_file(file):
        scores = np.concatenate([best, queries @ vectors.T], axis=1)
        named = np.concatenate([rows, np.broadcast_to(numbers, (len(queries), len(numbers)))], axis=1)
        order = np.argpartition(-scores, TOP - 1, axis=1)[:, :TOP]
        rows, best = np.take_along_axis(named, order, 1), np.take_along_axis(scores, order, 1)
    return rows


def recall(hits: list[NDArray[np.int64]], truth: NDArray[np.int64]) -> float:
    """Return the share of the nearest that were found."""
    same = sum(len(np.intersect1d(one, other)) for one, other in zip(hits, truth, strict=True))
    return round(same / truth.size, 4)


def peer(
    file: CellFile, queries: NDArray[np.float32], truth: NDArray[np.int64], probes: list[int]
) -> dict[str, Any] | None:
    """Ask FAISS the same."""
    try:
        import faiss  # type: ignore[import-not-found]
    except ImportError:
        return None
    faiss.omp_set_num_threads(1)
    cells = len(file.cells.fine)
    flat = faiss.IndexFlatIP(file.width)
    index = faiss.IndexIVFScalarQuantizer(
        flat, file.width, cells, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    every = max(1, len(file) // (_SAMPLE * cells))

    def make() -> None:
        index.train(np.concatenate([vectors[:: max(1, every)] for _, vectors in parts_of_file(file)]))
        for rows, vectors in parts_of_file(file):
            index.add_with_ids(vectors, rows)

    _, seconds = timed(make)
    found: dict[str, Any] = {"make_us_per_vector": round(seconds / len(file) * 1e6, 1)}
    for number in probes:
        index.nprobe = number
        hits, seconds = timed(lambda: [index.search(one[None], TOP)[1][0] for one in queries])
        found[f"probes_{number}"] = [recall(hits, truth), round(seconds / QUERIES * 1e3, 2)]
    return found


if __name__ == "__main__":
    sys.exit(main())
