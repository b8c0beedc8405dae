"""Curates synthetic clips in this process and on a Ray cluster that loses a node, and compares every byte.

    eatmydata python -m tests.bench.many_clips --clips 10000 [--folder DIR] [--per-source 50] [--lose cut]

A source is a file of eight bytes for each of its clips; work on it is made up and cheap, clips hold 64 bytes. All else
is real: the runners, the child processes, the ledger, thresholds, the search for copies, shards, the published tables.
Some sources are empty and some are copies of others, some clips show the pictures of others. Ray is two raylets on this
machine. All processes of the second one end by SIGKILL once a third of the sources is cut, or of the shards written.
Shards of so little would be written by the driver, and are written by the cluster here.

With ``--folder`` a run that has ended is not run again. ``eatmydata`` leaves out what a disk's syncing takes.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from reelweave.curate.config import CurateConfig
from reelweave.curate.run import state, write_shards
from reelweave.curate.run.curate import curate
from reelweave.curate.run.runners.progress import Progress
from reelweave.loader.dataset import verify
from reelweave.loader.storage import open_storage
from tests.bench.curate_scale import peak_bytes
from tests.bench.synthetic_sources import SyntheticCut, make_sources


def main(arguments: list[str] | None = None) -> int:
    """Print what both runs took as JSON; return 1 where their bytes differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--per-source", type=int, default=50, help="clips of a source, on average")
    parser.add_argument("--folder", type=Path, help="where all lies, and stays")
    parser.add_argument(
        "--lose", choices=("cut", "shard", "nothing"), default="cut", help="phase of the loss"
    )
    parser.add_argument("--run", choices=("sequential", "ray"), help="make this run alone")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="reelweave-many-") as name:
        folder = options.folder or Path(name)
        if not (folder / "list.csv").exists():
            make_sources(folder, options.clips, options.per_source)
        if options.run:
            run(folder, options.run, options.lose)
            return 0
        for runner in ("sequential", "ray"):
            if not (folder / f"{runner}.json").exists():
                again = [sys.executable, "-m", "tests.bench.many_clips", "--folder", str(folder)]
                subprocess.run([*again, "--run", runner, "--lose", options.lose], check=True)
        runs = {one: json.loads((folder / f"{one}.json").read_text()) for one in ("sequential", "ray")}
    digests = [one.pop("files") for one in runs.values()]
    same = digests[0] == digests[1]
    print(
        json.dumps({"clips": options.clips, **runs, "files": len(digests[0]), "same_bytes": same}, indent=1)
    )
    return 0 if same and all(one["verified"] for one in runs.values()) else 1


def run(folder: Path, runner: str, lose: str) -> None:
    """Curate, and write what it took, and the digest of every file, beside the dataset."""
    state.CutSource = SyntheticCut  # type: ignore[misc]
    write_shards._SMALL_BYTES = 0
    out = folder / runner
    clock = Phases()
    began = time.monotonic()
    if runner == "ray":
        nodes = on_two_nodes(folder, out, clock, lose)
    else:
        curate([str(folder / "list.csv")], str(out), config(runner), clock)
        nodes = {}
    wall_s = time.monotonic() - began
    files = digests(out)
    result: dict[str, Any] = {
        **nodes,
        "wall_s": round(wall_s, 1),
        "phases_s": clock.spent_s(wall_s),
        "driver_cpu_s": round(time.process_time(), 1),
        "driver_peak_mb": round(peak_bytes() / 1e6),
        "verified": verify(open_storage(out)).ok,
        "accounting": totals(out),
        "files": files,
    }
    (folder / f"{runner}.json").write_text(json.dumps(result, indent=1))


class Phases:
    """Seconds at which each phase began, by the progress that a run shows.

    Attributes:
        last: Progress shown last.
    """

    def __init__(self) -> None:
        self._began, self._first = time.monotonic(), {"list": 0.0}
        self.last: Progress | None = None

    def __call__(self, progress: Progress) -> None:
        self.last = progress
        self._note(progress.phase)
        if progress.done == progress.total:
            self._note({"cut": "decide", "shard": "publish"}.get(progress.phase, progress.phase))

    def _note(self, phase: str) -> None:
        self._first.setdefault(phase, time.monotonic() - self._began)

    def spent_s(self, wall_s: float) -> dict[str, float]:
        """Return the seconds of each phase of a run that took so long."""
        ends = [*list(self._first.values())[1:], wall_s]
        return {
            name: round(end - begin, 1) for (name, begin), end in zip(self._first.items(), ends, strict=True)
        }


def on_two_nodes(folder: Path, out: Path, clock: Phases, lose: str) -> dict[str, Any]:
    """Curate on two raylets, all processes of the second of which are killed on the way."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 1 << 29}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    lost: list[dict[str, Any]] = []

    def kill() -> None:
        roots = [one.process.pid for some in second.all_processes.values() for one in some]
        every = [psutil.Process(pid) for pid in roots]
        every += [child for one in list(every) for child in one.children(recursive=True)]
        lost[-1]["processes"] = len(every)
        for one in every:
            os.kill(one.pid, signal.SIGKILL)
        cluster.remove_node(second, allow_graceful=False)

    def watch(progress: Progress) -> None:
        clock(progress)
        if not lost and progress.phase == lose and 3 * progress.done >= progress.total:
            lost.append({"phase": lose, "after": progress.done, "of": progress.total})
            threading.Thread(target=kill).start()

    try:
        curate([str(folder / "list.csv")], str(out), config("ray"), watch)
        alive = sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {"nodes_left": alive, "lost": lost}


def config(runner: str) -> CurateConfig:
    """Return the defaults but for two thresholds, small shards, and little memory for each worker."""
    return CurateConfig.model_validate(
        {
            "filters": {"min_motion": 0.02, "max_text_share": 0.97},
            "shard": {"max_shard_mb": 0.032},  # 500 clips
            "run": {"runner": runner, "worker_memory_mb": 512},  # each raylet counts the memory of all
        }
    )


def digests(out: Path) -> dict[str, str]:
    """Return the digest of every file but those of the ledger."""
    paths = sorted(path for path in out.rglob("*") if path.is_file() and out / ".ledger" not in path.parents)
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def totals(out: Path) -> dict[str, int]:
    """Return the number of clips in each state."""
    manifest = json.loads((out / "manifest.json").read_text())
    found: dict[str, int] = manifest["totals"]["accounting"]
    return found


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sys.exit(main())
