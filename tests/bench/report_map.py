"""What the map of a large dataset costs: processor seconds, memory, bytes, and the time until its points are drawn.

    python -m tests.bench.report_map [--clips 100000] [--dimensions 512]

Writes a dataset of that many clips of no pictures with embeddings of 40 kinds, makes the report with all of them on the
map in a fresh process, and opens the map in the system's Chromium.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from reelweave.loader.dataset import DatasetWriter, Sample, open_dataset
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.report.buckets import default_config
from tests.bench.report_gallery import peak_mb
from tests.browser import Browser, chromium, draw_all
from tests.loader.stream_clips import make_sample


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--made", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.made:
        print(json.dumps(made(Path(options.made))))
        return 0
    with tempfile.TemporaryDirectory(prefix="reelweave-map-") as name:
        folder = Path(name) / "dataset"
        make(folder, options.clips, options.dimensions)
        command = [sys.executable, "-m", "tests.bench.report_map", "--made", str(folder)]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        result |= drawn(folder / "report/map.html", options.clips)
    print(json.dumps({"clips": options.clips, "dimensions": options.dimensions, **result}, indent=1))
    return 0


def make(folder: Path, clips: int, dimensions: int) -> None:
    """Write the dataset; every thousandth clip is like no other."""
    drawn_numbers = np.random.default_rng(0)
    centres = drawn_numbers.standard_normal((40, dimensions), np.float32)
    with DatasetWriter(open_storage(folder), max_shard_bytes=64 << 20) as writer:
        for number in range(clips):
            own = drawn_numbers.standard_normal(dimensions, np.float32)
            vector = own if number % 1000 == 0 else centres[number * 7 % 40] + 0.5 * own
            vector /= np.linalg.norm(vector)
            one = make_sample(f"{number * 2654435761 % 2**32:08x}", b"no video", 48, (640, 360))
            writer.add(Sample(one.row, one.clip, {"video.npy": vector.astype(np.float16)}))


def made(folder: Path) -> dict[str, Any]:
    """Make the numbers of the map, then the whole report."""
    from reelweave.pipelines.commands.look.report import write_report
    from reelweave.pipelines.report.numbers.dataset_map import dataset_map

    config = default_config(StorageConfig()).model_copy(update={"max_mapped": 10**9, "max_clips": 0})
    dataset = open_dataset(folder)
    assert dataset.index.num_rows
    before_mb = peak_mb()
    began, clock = time.process_time(), time.perf_counter()
    mapped = dataset_map(dataset, config)
    result = {
        "map": {"processor_s": time.process_time() - began, "wall_s": time.perf_counter() - clock},
        "peak_before_mb": before_mb,
        "peak_mb": peak_mb(),
        "clusters": len(mapped.samples),
        "outliers": len(mapped.outliers),
    }
    began = time.process_time()
    write_report(dataset, config)
    files = {name: (folder / "report" / name).stat().st_size / 1e6 for name in ("map.parquet", "data/map.js")}
    return result | {"whole_report_processor_s": time.process_time() - began, "mb": files}


def drawn(page: Path, clips: int) -> dict[str, Any]:
    """Seconds until all points are drawn."""
    where = chromium()
    if where is None:
        return {"browser": None}
    with Browser(where) as browser, browser.opened(page) as opened:
        draw_all(opened)
        opened.wait_for_selector(f"body[data-ready='{clips}']")
        return {"drawn_s": opened.evaluate("performance.now()") / 1000}


if __name__ == "__main__":
    sys.exit(main())
