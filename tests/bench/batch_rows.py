"""Time and memory of `batch.rows`, and of selections: what the first call on a machine reads, and each batch takes.

python -m tests.bench.batch_rows [--rows 1000000]

The index has ten fields a sample, as a downloader's JSON gives them. Each figure is of a fresh process.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from reelweave.loader.base.shared.node_files import NodeFiles
from reelweave.loader.blend.selection.choose import choose
from reelweave.loader.blend.selection.config import GroupSplit, Quota, Selection
from reelweave.loader.dataset.tables.parquet import ParquetWriter, read_batches
from reelweave.loader.dataset.tables.row_columns import ROW_SCHEMA, RowColumns

BATCH, BATCHES, PART = 8, 500, 1 << 15
SELECTIONS = {
    "condition": Selection.of("aesthetic > 4.5 and licence >= 'licence 5'", None, None, "stream"),
    "split": Selection.of(None, GroupSplit(by="source"), None, "stream"),
    "quota": Selection.of(None, None, Quota(by="platform", samples=1), "stream"),
}


def main() -> None:
    """Write an index, then measure the first process of a machine and the next one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--process", default="")
    options = parser.parse_args()
    if options.folder:
        name = options.process
        select(options.folder, options.rows, SELECTIONS[name]) if name in SELECTIONS else measure(
            options.folder
        )
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ParquetWriter(folder / "index.parquet", ROW_SCHEMA) as writer:
            for first in range(0, options.rows, PART):
                writer.add(part_of(np.arange(first, min(options.rows, first + PART))))
        size = (folder / "index.parquet").stat().st_size
        sys.stdout.write(f"{options.rows:,} rows; columns of the index: {size / 1e6:.0f} MB\n")
        for process in ("first process", "next process", *SELECTIONS):
            command = [sys.executable, "-m", "tests.bench.batch_rows", "--folder", name, "--process", process]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            sys.stdout.write(f"{process}: {done.stdout}")


def part_of(number_n: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Table:
    """Return rows with six texts and four numbers each."""
    names = ["url", "licence", "status", "sha256", "camera", "platform"]
    texts = [[(name, f"{name} {number * 7919}") for name in names] for number in number_n.tolist()]
    scores = [
        [(name, number / 7) for name in ("aesthetic", "motion", "width", "height")]
        for number in number_n.tolist()
    ]
    columns = {
        "key": [f"{number:012}" for number in number_n.tolist()],
        "source": [f"train-{number // 1000:05}.tar/{number}" for number in number_n.tolist()],
        "split": ["train"] * len(number_n),
        **{name: np.full(len(number_n), 4.0) for name in ("start_s", "end_s", "duration_s")},
        "attributes": texts,
        "scores": scores,
    }
    return pa.table(columns, schema=ROW_SCHEMA)


def measure(folder: Path) -> None:
    """Write what opening the columns and reading batches of random rows take in this process."""
    parts = partial(parts_of, folder / "index.parquet")
    before, began = memory_mb(), time.perf_counter()
    columns = RowColumns(NodeFiles(folder), "bench", parts)
    opened_s = time.perf_counter() - began
    opened_mb, rows = memory_mb() - before, int(columns._starts[-1])
    random = np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(BATCHES):
        columns.take(random.integers(0, rows, BATCH))
    each_us = (time.perf_counter() - began) / BATCHES * 1e6
    [mapped] = folder.rglob("*.batches")
    sys.stdout.write(
        f"opened in {opened_s:.2f} s, {opened_mb:.0f} MB more at the peak; a batch of {BATCH} random rows"
        f" {each_us:.0f} us, {memory_mb() - before:.0f} MB after {BATCHES} (mapped pages included);"
        f" file {mapped.stat().st_size / 1e6:.0f} MB\n"
    )


def parts_of(file: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of the index by parts."""
    with file.open("rb") as opened:
        for batch in read_batches(opened, file.stat().st_size, "index", ROW_SCHEMA, None, columns):
            yield pa.Table.from_batches([batch])


def select(folder: Path, rows: int, selection: Selection) -> None:
    """Write what a selection takes in this process."""

    def table_parts(_: str, columns: Sequence[str]) -> Iterator[pa.Table]:
        return parts_of(folder / "index.parquet", columns)

    dataset = SimpleNamespace(
        table_parts=table_parts, manifest=SimpleNamespace(totals=SimpleNamespace(samples=rows))
    )
    before, began = memory_mb(), time.perf_counter()
    chosen = choose(dataset, selection, among=np.ones(rows, np.bool_))  # type: ignore[arg-type]
    took_s = time.perf_counter() - began
    sys.stdout.write(
        f"{len(chosen.rows):,} of {chosen.samples:,} rows in {took_s:.2f} s,"
        f" {memory_mb() - before:.0f} MB more at the peak\n"
    )


def memory_mb() -> float:
    """Return the peak of this process's memory, mapped pages included."""
    [peak] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(peak.split()[1]) / 1024


if __name__ == "__main__":
    main()
