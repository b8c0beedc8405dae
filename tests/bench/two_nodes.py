"""Curates on a Ray cluster of two nodes (two raylets on this machine), loses one in mid-run, compares the bytes.

    python -m tests.bench.two_nodes --videos DIR [--keep-both]

The driver runs on the head node; the other is killed, without a farewell, once a third of the sources is closed.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.curate.run.runners.progress import Progress
from reelweave.loader.dataset import verify
from reelweave.loader.storage import open_storage


def main(arguments: list[str] | None = None) -> int:
    """Prints what happened as JSON; 1 when the bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--keep-both", action="store_true", help="lose no node")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        quiet = run_sequential(options.videos, Path(folder) / "undisturbed")
        result = run_on_two_nodes(options.videos, Path(folder) / "disturbed", lose=not options.keep_both)
        result["same_bytes"] = tree(Path(folder) / "undisturbed") == tree(Path(folder) / "disturbed")
        result["verified"] = verify(open_storage(Path(folder) / "disturbed")).ok
        result["undisturbed_s"] = quiet
    print(json.dumps(result, indent=1))
    return 0 if result["same_bytes"] and result["verified"] else 1


def tree(folder: Path) -> dict[str, bytes]:
    """Path to content of everything but the ledger."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(".ledger/")}


def run_sequential(videos: str, out: Path) -> float:
    """An undisturbed run in this process; its seconds."""
    began = time.monotonic()
    curate([videos], str(out), config("sequential"))
    return time.monotonic() - began


def run_on_two_nodes(videos: str, out: Path, lose: bool) -> dict[str, object]:
    """A run on two nodes, one of which is lost on the way."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    nodes_before = sum(node["Alive"] for node in ray.nodes())
    lost_at: list[int] = []

    def watch(progress: Progress) -> None:
        if lose and not lost_at and progress.phase == "cut" and 3 * progress.done >= progress.total:
            lost_at.append(progress.done)
            threading.Thread(
                target=cluster.remove_node, args=(second,), kwargs={"allow_graceful": False}
            ).start()

    began = time.monotonic()
    try:
        curate([videos], str(out), config("ray"), watch)
        alive = sum(node["Alive"] for node in ray.nodes())
    finally:
        ray.shutdown()
        cluster.shutdown()
    return {
        "nodes": nodes_before,
        "nodes_left": alive,
        "lost_after_sources": lost_at[0] if lost_at else None,
        "wall_s": time.monotonic() - began,
    }


def config(runner: str) -> CurateConfig:
    """Defaults but for the runner, and shards small enough for several."""
    memory = {"worker_memory_mb": 512}  # two raylets each count the memory of the whole machine
    return CurateConfig.model_validate({"run": {"runner": runner, **memory}, "shard": {"max_shard_mb": 2.0}})


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sys.exit(main())
