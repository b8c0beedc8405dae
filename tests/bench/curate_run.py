"""What a whole run costs beyond its stages: Ray against the sequential runner, a new threshold, the object store.

    python -m tests.bench.curate_run --videos DIR

Curates DIR once with the sequential runner, once on Ray with one processor and once with two, changes a threshold of
the first dataset, and prints seconds of the wall clock as JSON. Nothing else should run on the machine. Ray's own start
is measured apart: it is paid once, however long the run is.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import Dataset
from reelweave.loader.storage import open_storage


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON; 1 when datasets differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--videos", required=True)
    options = parser.parse_args(arguments)
    videos = options.videos
    with tempfile.TemporaryDirectory(prefix="reelweave-bench-") as name:
        folder = Path(name)
        sequential_s = run(videos, folder / "sequential", "sequential")
        result = {"sequential_s": sequential_s}
        for processors in (1, 2):
            with on_ray(processors) as store:
                out = folder / f"ray {processors}"
                seconds = run(videos, out, "ray")
                result[f"ray_{processors}_s"] = seconds
                result[f"ray_{processors}_start_s"] = store["start_s"]
                result[f"object_store_peak_bytes_{processors}"] = store["peak"]
            if tables(out) != tables(folder / "sequential"):
                print(f"{out} differs from the sequential run", file=sys.stderr)
                return 1
        result["ray_overhead"] = result["ray_1_s"] / sequential_s - 1
        result["threshold_s"] = run(videos, folder / "sequential", "sequential", min_short_side_px=300)
        result["threshold_share"] = result["threshold_s"] / sequential_s
        result["source_bytes"] = sum(one.stat().st_size for one in Path(videos).rglob("*") if one.is_file())
    print(json.dumps(result, indent=1))
    return 0


def run(videos: str, out: Path, runner: str, **filters: float) -> float:
    """Seconds of one run; of an update where the dataset is there."""
    config = CurateConfig.model_validate({"run": {"runner": runner}, "filters": filters})
    began = time.monotonic()
    curate([videos], str(out), config, update=out.exists())
    return time.monotonic() - began


@contextmanager
def on_ray(processors: int) -> Iterator[dict[str, float]]:
    """A fresh Ray; seconds its start took, and the most bytes its object store held while the context lasted."""
    began = time.monotonic()
    ray.init(num_cpus=processors, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    found = {"start_s": time.monotonic() - began, "peak": 0.0}
    over = threading.Event()
    whole = ray.cluster_resources()["object_store_memory"]

    def watch() -> None:
        while not over.wait(0.1):
            used = whole - ray.available_resources().get("object_store_memory", whole)
            found["peak"] = max(found["peak"], used)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()
        ray.shutdown()


def tables(out: Path) -> list[dict[str, object]]:
    """The rows of a dataset's index, which hold the digests of its clips."""
    return Dataset(open_storage(out)).index.to_pylist()


if __name__ == "__main__":
    sys.exit(main())
