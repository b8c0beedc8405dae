"""What a node of many ranks downloads, holds and plans, with real processes and an S3 server.

    python -m tests.bench.node_start index [--samples 4000000] [--processes 1 8]
    python -m tests.bench.node_start plan [--samples 4000000] [--processes 1 8] [--ranks 4096] [--steps 30]
    python -m tests.bench.node_start locality [--samples 400000]
    python -m tests.bench.node_start requests [--samples 4000]

``index``: bytes sent by the server and memory of the node (the sum of the processes' proportional shares) once all have
opened the plan index. ``plan``: processor time of a process until its epoch is planned, and of each step after it.
``locality``: requests and bytes of the samples that a rank reads, and how much less random a step is, by length of run.
``requests``: requests and samples per second of a real server, for samples of one bucket and 50 KB, 16 in flight.
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

from reelweave.loader.base.arrays import Places
from reelweave.loader.dataset import open_dataset
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.plan.position import EpochSegment, Position, Setting
from reelweave.loader.read.fetch import ByteRange, coalesced
from reelweave.loader.storage import StorageConfig, open_storage
from tests.bench.big_index import CONFIG, LARGE_BATCHES, make

MICROBATCHES, FEATURES = 4, 32


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["index", "plan", "locality", "requests"])
    parser.add_argument("--samples", type=int, default=4_000_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        child = {"index": opened, "plan": planned}[options.what]
        child(json.loads(options.child))
        return 0
    with tempfile.TemporaryDirectory(prefix="reelweave-node-") as name:
        folder = Path(name)
        if options.what != "requests":
            make(folder / "dataset", options.samples)
        run = {"index": index, "plan": plan, "locality": locality, "requests": requests}[options.what]
        print(json.dumps(run(folder, options), indent=1))
    return 0


def index(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Opens a dataset in S3 with some processes at once."""
    from tests.s3server import FaultyProxy, make_bucket, s3_server

    rows = []
    with s3_server() as endpoint:
        make_bucket(endpoint, "lake")
        storage = open_storage("s3://lake/dataset", StorageConfig(endpoint_url=endpoint))
        for path in ("plan.arrow", "manifest.json"):
            storage.write(path, (folder / "dataset" / path).read_bytes())
        for count in options.processes:
            with FaultyProxy(endpoint) as proxy:
                node = folder / f"node-{count}"
                said = children("index", [{"endpoint": proxy.url, "node": str(node)}] * count)
                sent = proxy.bytes_sent("GET .*plan.arrow")
            rows.append(
                {"processes": count, "bytes_per_sample": sent / options.samples} | summed(said, options)
            )
    return rows


def opened(task: dict[str, Any]) -> None:
    """Opens the index and finds the bucket of every sample, as the process of a rank does."""
    node = {"node_folder": Path(task["node"])} if "node_folder" in StorageConfig.model_fields else {}
    before = proportional()
    dataset = open_dataset("s3://lake/dataset", StorageConfig(endpoint_url=task["endpoint"], **node))
    touched = sum(int(column[::64].sum()) for column in dataset.plan_index.columns().values())
    together(proportional, before, {"touched": touched, "cpu_s": time.process_time()})


def plan(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Plans an epoch and some steps with some processes at once."""
    rows = []
    for shared in [False, True] if has_shuffle() else [False]:
        for order in ("sorted", "permuted") if has_shuffle() else ("sorted",):
            for count in options.processes:
                node = str(folder / f"node-{count}-{order}") if shared else None
                tasks = [
                    {
                        "folder": str(folder),
                        "node": node,
                        "order": order,
                        "rank": rank,
                        "ranks": options.ranks,
                    }
                    | {"steps": options.steps}
                    for rank in range(count)
                ]
                said = children("plan", tasks)
                what = {"processes": count, "shared": shared, "order": order}
                for name in ("start_cpu_s", "step_cpu_ms"):
                    what[name] = float(np.mean([one[name] for one in said]))
                assert len({one["samples"] for one in said}) == 1
                rows.append(what | summed(said, options))
    return rows


def has_shuffle() -> bool:
    """Whether this code shares plans; the script also runs beside older code."""
    return "shuffle" in Setting.model_fields


def planned(task: dict[str, Any]) -> None:
    """Plans as a stream does, and takes the steps of one rank."""
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.loader.stream.curriculum_plans import CurriculumPlans

    dataset = open_dataset(Path(task["folder"]) / "dataset")
    before = proportional()
    own = {"policy": "balanced", "regime": "step", "lookahead": 4}
    changes: dict[str, Any] = {}
    if has_shuffle():
        changes = {"shuffle": {"order": task["order"]}}
    node = {} if task["node"] is None else {"node_folder": Path(task["node"])}
    # A whole dataset needs an index for its fingerprint; this one stands for it.
    type(dataset).fingerprint = property(lambda self: "bench")  # type: ignore[method-assign,assignment]
    config = StreamConfig(buckets=CONFIG, microbatches=MICROBATCHES, **changes, **node)
    began = time.process_time()
    stages = CurriculumPlans(dataset, config)
    setting = Setting(**own, **({"shuffle": config.shuffle} if has_shuffle() else {}))  # type: ignore[arg-type]
    position = Position(0, 0, (EpochSegment(setting, task["ranks"], MICROBATCHES, 0),))
    made = stages.plan(position)
    start_cpu_s = time.process_time() - began
    began, samples = time.process_time(), 0
    for number in range(task["steps"]):
        step = made.step(number, task["rank"])
        samples += step.samples
    step_cpu_ms = (time.process_time() - began) * 1000 / task["steps"]
    together(
        proportional,
        before,
        {
            "start_cpu_s": start_cpu_s,
            "step_cpu_ms": step_cpu_ms,
            "samples": samples,
            "cpu_s": time.process_time(),
        },
    )


def locality(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Requests, bytes and randomness of an epoch by length of run, for samples of which six in a row are alike."""
    from reelweave.loader.buckets.assignment import assign
    from reelweave.loader.plan.shuffle import Shuffle

    dataset = open_dataset(folder / "dataset")
    index, rng = dataset.plan_index, np.random.default_rng(0)
    count = len(index)
    rows = []
    for layout in ("mixed", "binned"):
        assignment = assign(index, LARGE_BATCHES.model_copy(update={"memory_tokens": 1_200_000}))
        # Where each sample lies: as the sources came, or with those of one bucket in shards of their own.
        at = rng.permutation(count)
        if layout == "binned":
            at[np.argsort(assignment.bucket_of, kind="stable")] = np.arange(count)
        size = rng.integers(100, 400, count) * 512
        offset = np.empty(count, np.int64)
        offset[np.argsort(at)] = np.cumsum(size[np.argsort(at)]) - size[np.argsort(at)]
        near: Places = at.astype(np.int64)
        sources = rng.normal(size=(count // 6 + 1, FEATURES)).astype(np.float32)
        alike = sources[at // 6]  # clips of one source lie side by side
        value = np.sqrt(0.5) * (alike + rng.normal(size=(count, FEATURES)).astype(np.float32))
        for run in (1, 2, 4, 8, 16, 64):
            made = plan_epoch(
                assignment,
                0,
                0,
                StepLayout(64, MICROBATCHES),
                shuffle=Shuffle(order="permuted", run=run),
                near_N=near if run > 1 else None,
            )
            requests = read = wanted = samples = 0
            means, within = [], []
            for step in made:
                for micro in step.microbatches:
                    places = [
                        ByteRange(int(at[row]) // 1000, int(offset[row]), int(size[row]))
                        for row in micro.rows.tolist()
                    ]
                    asked = coalesced(places)
                    requests, samples = requests + len(asked), samples + len(places)
                    read += sum(one.span.size for one in asked)
                    wanted += sum(place.size for place in places)
                    if len(micro.rows) >= 8:
                        own = value[micro.rows]
                        within.append(float((own.mean(axis=0) ** 2).mean() * len(own)))
                own_rows = np.concatenate([micro.rows for micro in step.microbatches])
                means.append(float((value[own_rows].mean(axis=0) ** 2).mean() * len(own_rows)))
            rows.append(
                {
                    "layout": layout,
                    "run": run,
                    "samples_per_microbatch": samples / (len(made) * 64 * MICROBATCHES),
                    "requests_per_sample": requests / samples,
                    "bytes_over_wanted": read / wanted,
                    "variance_of_microbatches": float(np.mean(within)),
                    "variance_of_steps": float(np.mean(means)),
                }
            )
    return rows


def requests(_: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Reads every sample of an epoch from shards of 40 samples, in microbatches of 8."""
    from reelweave.loader.plan.shuffle import Permuted
    from reelweave.loader.read.fetch import Fetcher
    from tests.s3server import FaultyProxy, make_bucket, s3_server

    size, per_shard, rows = 50 << 10, 40, []
    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "lake")
        storage = open_storage("s3://lake/dataset", StorageConfig(endpoint_url=endpoint))
        for shard in range(options.samples // per_shard):
            storage.write(f"{shard}.tar", bytes(size * per_shard))
        reader = open_storage("s3://lake/dataset", StorageConfig(endpoint_url=proxy.url))
        for run in (1, 4, 1, 4, 16):
            order = Permuted(0, run, 0, np.array([0, options.samples]), run=run)[:].tolist()
            before, sent, began = len(proxy.lines("GET")), proxy.bytes_sent("GET"), time.perf_counter()
            fetcher = Fetcher(lambda shard, offset, count: reader.read(f"{shard}.tar", offset, count), 16)
            fetched = [
                one
                for start in range(0, len(order), 8)
                for one in fetcher.fetch(
                    [
                        ByteRange(row // per_shard, row % per_shard * size, size)
                        for row in order[start : start + 8]
                    ]
                )
            ]
            assert sum(len(one.result()) for one in fetched) == options.samples * size
            fetcher.close()
            took_s, asked = time.perf_counter() - began, len(proxy.lines("GET")) - before
            rows.append(
                {"run": run, "requests_per_sample": asked / options.samples, "requests_per_s": asked / took_s}
                | {
                    "samples_per_s": options.samples / took_s,
                    "bytes_over_wanted": (proxy.bytes_sent("GET") - sent) / options.samples / size,
                }
            )
    return rows


def children(what: str, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What processes say that all are alive until the last one is ready."""
    command = [sys.executable, "-m", "tests.bench.node_start", what, "--child"]
    running = [
        subprocess.Popen(
            [*command, json.dumps(task)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for task in tasks
    ]
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:  # all are: their shares of what they map can be told
        assert one.stdin is not None
        one.stdin.write("measure\n")
        one.stdin.flush()
    said = [json.loads(one.stdout.readline()) for one in running if one.stdout is not None]
    for one in running:
        one.communicate("end\n")
    return said


def together(measure: Any, before: int, said: dict[str, Any]) -> None:
    """Says how much memory was taken while all other processes are ready, too."""
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(said | {"memory": measure() - before}), flush=True)
    sys.stdin.readline()


def proportional() -> int:
    """Bytes of this process, what several map divided by their number."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("Pss:")).split()[1])


def summed(said: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, float]:
    """Memory and processor time of the node."""
    return {
        "node_bytes_per_sample": sum(one["memory"] for one in said) / options.samples,
        "node_cpu_s": sum(one["cpu_s"] for one in said),
    }


if __name__ == "__main__":
    sys.exit(main())
