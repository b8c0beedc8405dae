"""Workers planned while a pipeline runs on Ray, against the best fixed split known in hindsight and Ray Data's pools.

    python -m tests.bench.worker_plans [SHAPE ...] [--ways fixed planned ray]

Stages sleep, so that two processors can pretend to be 64; a model also sleeps while it loads, once per worker. Sources
have lognormal costs, and clips cost in proportion. All ways of a shape run on one Ray, after one pass that starts its
processes. In ``fixed`` the numbers of workers are those that would end first if nothing but sleep took time.
``planned`` is our runner, ``ray`` has pools without a maximum and Ray Data's defaults. Prints a JSON line for each,
with the seconds and the ratio to ``fixed``. In the shape ``joins`` a second node joins after 10 s, in ``leaves`` it is
killed after 10 s; ``fixed`` is then planned for the nodes of the beginning. Each clip must come once, as from one
process, and at the end no worker may hold a processor.
"""

import argparse
import itertools
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reelweave.curate.run.runners.pipeline import Stage, run_on_ray
from reelweave.curate.run.runners.replanning import Kept

Row = dict[str, Any]

_CHANGE_S = 10.0
_MOST_FREED_S = 60.0


@dataclass(frozen=True)
class Model:
    """A stage that keeps workers: seconds of a clip, seconds until it is loaded, GPUs of a worker."""

    clip_s: float
    load_s: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Shape:
    """A cluster and what it has to do."""

    nodes: Sequence[tuple[int, int]]
    sources: int
    cut_s: float
    models: dict[str, Model]
    spread: float = 0.5
    clips: int = 2
    change: str = ""
    speeds: dict[str, float] = field(default_factory=dict)


SHAPES = {
    "cutting is slow": Shape([(8, 0)], 96, 2.0, {"embed": Model(0.1)}),
    "the model is slow": Shape([(8, 0)], 96, 0.1, {"embed": Model(1.0)}),
    "both alike": Shape([(8, 0)], 96, 1.2, {"embed": Model(0.6)}),
    "two models": Shape([(8, 0)], 96, 0.6, {"embed": Model(0.3), "captions": Model(0.6)}),
    "loads for 15 s": Shape([(8, 0)], 192, 1.2, {"embed": Model(0.6, load_s=15.0)}),
    "few big, many small": Shape([(8, 0)], 150, 1.0, {"embed": Model(0.3)}, spread=1.5),
    "two GPUs": Shape([(8, 2)], 96, 1.4, {"embed": Model(0.12, gpus=1.0)}, clips=4),
    "GPUs of two speeds": Shape(
        [(4, 1), (4, 2)], 96, 0.7, {"embed": Model(0.2, gpus=1.0)}, clips=4, speeds={"1": 1.0, "2": 3.0}
    ),
    "2 processors": Shape([(2, 0)], 16, 1.0, {"embed": Model(0.3), "captions": Model(0.6)}),
    "64 processors": Shape([(64, 0)], 768, 2.4, {"embed": Model(1.2)}),
    "joins": Shape([(4, 0), (4, 0)], 96, 1.2, {"embed": Model(0.6)}, change="joins"),
    "leaves": Shape([(4, 0), (4, 0)], 96, 0.8, {"embed": Model(0.4)}, change="leaves"),
}


class Cut:
    """Sources to their clips."""

    def __call__(self, sources: Sequence[Row]) -> Iterator[Row]:
        """Yield the clips of each source."""
        for source in sources:
            for clip in range(source["clips"]):
                time.sleep(source["cut_s"] / source["clips"])
                yield {"clip": f"{source['name']}-{clip}", "weight": source["weight"], "cut_on": _node()}


class Ask:
    """Clips to themselves, as slowly as a model that loads first; it knows the speed of its node's GPUs."""

    def __init__(self, model: Model, speeds: dict[str, float]) -> None:
        self._model, self._speeds, self._loaded = model, speeds, False
        self._speed = 1.0

    def __call__(self, clips: Sequence[Row]) -> Iterator[Row]:
        """Yield the clips."""
        if not self._loaded:
            time.sleep(self._model.load_s)
            self._loaded = True
            self._speed = self._speeds.get(_gpus_here() if self._speeds else "", 1.0)
        for clip in clips:
            time.sleep(self._model.clip_s * clip["weight"] / self._speed)
            yield {**clip, "asked_on": _node()}


def _node() -> str:
    """Return the identity of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _gpus_here() -> str:
    """Return the number of GPUs of this node."""
    import ray

    (node,) = [node for node in ray.nodes() if node["NodeID"] == _node()]
    return f"{node['Resources'].get('GPU', 0):g}"


def sources(shape: Shape) -> list[Row]:
    """Return sources, the largest first."""
    chance = np.random.default_rng(0)
    weights = np.sort(chance.lognormal(-(shape.spread**2) / 2, shape.spread, shape.sources))[::-1]
    weights *= shape.sources / weights.sum()
    return [
        {"name": str(number), "clips": shape.clips, "cut_s": shape.cut_s * weight, "weight": float(weight)}
        for number, weight in enumerate(weights)
    ]


def best(shape: Shape) -> dict[str, int]:
    """Return the numbers of workers with which the slowest stage is fastest, by trying them all."""
    nodes = shape.nodes[:1] if shape.change == "joins" else shape.nodes
    cpus, gpus = (sum(node[place] for node in nodes) for place in (0, 1))
    work = {"cut": shape.cut_s} | {name: shape.clips * one.clip_s for name, one in shape.models.items()}
    needs = [0.0, *(one.gpus for one in shape.models.values())]
    found: tuple[float, tuple[int, ...]] = (math.inf, ())
    for counts in itertools.product(range(1, cpus), repeat=len(work) - 1):
        split = (cpus - sum(counts), *counts)
        if split[0] < 1 or sum(need * count for need, count in zip(needs, split, strict=True)) > gpus:
            continue
        found = min(found, (max(s / count for s, count in zip(work.values(), split, strict=True)), split))
    # Two processors hold no worker of each of three stages; workers share them.
    return dict(zip(work, found[1] or [1] * len(work), strict=True))


def by_ray(rows: list[Row], shape: Shape, split: dict[str, int] | None) -> list[Row]:
    """Run on Ray Data as it is, with fixed numbers of workers or pools without a maximum; return the clips."""
    import ray

    share = min(1.0, sum(cpus for cpus, _ in shape.nodes) / (1 + len(shape.models)))
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    tasks = ray.data.TaskPoolStrategy(size=split["cut"] if split else None)
    data = data.map_batches(_Batches(Cut()), batch_size=1, compute=tasks, num_cpus=share, memory=1)
    for name, model in shape.models.items():
        sizes = {"size": split[name]} if split else {"min_size": 1}
        data = data.map_batches(
            _Batches,
            fn_constructor_args=(Ask(model, shape.speeds),),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(**sizes),
            num_cpus=share,
            num_gpus=model.gpus,
        )
    return list(data.iter_rows())


class _Batches:
    """A stage as Ray Data calls it."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, list[Any]]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        for row in self._stage(rows):
            yield {name: [value] for name, value in row.items()}


def by_us(rows: list[Row], shape: Shape) -> tuple[list[Row], Kept]:
    """Run on our runner; return the clips and the workers that stages kept."""
    models = [
        Stage(name, Ask(model, shape.speeds), keeps=True, gpus=model.gpus)
        for name, model in shape.models.items()
    ]
    kept = Kept()
    # Memory keeps Ray from making one operator of cutting and a model, as it does in a curation.
    results = run_on_ray(rows, [Stage("cut", Cut(), memory_mb=0.001), *models], kept)
    return [result.task for result in results], kept


def run(shape: Shape, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the seconds of each way; of a cluster that changes, each has its own."""
    if shape.change:
        for way in ways:
            yield from _on_one_ray(shape, [way])
    else:
        yield from _on_one_ray(shape, ways)


def _on_one_ray(shape: Shape, ways: Sequence[str]) -> Iterator[dict[str, Any]]:
    import ray
    from ray.cluster_utils import Cluster

    nodes = [
        {"num_cpus": cpus, "num_gpus": gpus, "object_store_memory": 2 * 10**8} for cpus, gpus in shape.nodes
    ]
    cluster = Cluster(initialize_head=True, head_node_args={**nodes[0], "include_dashboard": False})
    others = [cluster.add_node(**node) for node in (nodes[1:] if shape.change != "joins" else [])]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        warm = [{"name": "", "clips": 1, "cut_s": 1.0, "weight": 1.0}] * sum(node[0] for node in shape.nodes)
        list(run_on_ray(warm, [Stage("warm", Cut())]))
        changes = {
            "joins": lambda: cluster.add_node(**nodes[-1]),
            "leaves": lambda: cluster.remove_node(others[0]),
        }
        # Nodes are added by the main thread alone.
        with ThreadPoolExecutor(1) as pool:
            for way in ways:
                running = pool.submit(_timed, shape, way)
                if shape.change:
                    time.sleep(_CHANGE_S)
                    changes[shape.change]()
                yield running.result()
    finally:
        ray.shutdown()
        cluster.shutdown()


def _timed(shape: Shape, way: str) -> dict[str, Any]:
    import ray

    rows, kept, split = sources(shape), Kept(), best(shape)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    context.op_resource_reservation_ratio = 0.5
    began = time.monotonic()
    if way == "planned":
        clips, kept = by_us(rows, shape)
    else:
        clips = by_ray(rows, shape, split if way == "fixed" else None)
    wall_s = time.monotonic() - began
    expected = [(f"{row['name']}-{clip}", row["weight"]) for row in rows for clip in range(row["clips"])]
    assert sorted((clip["clip"], clip["weight"]) for clip in clips) == sorted(expected)
    used = {
        name: sorted(Counter(clip[name] for clip in clips).values(), reverse=True)
        for name in ("cut_on", "asked_on")
    }
    held = {"workers": split} if way == "fixed" else {"workers at most": kept.most} if kept.most else {}
    freed_s = _freed_s()
    return {
        "way": way,
        "wall_s": round(wall_s, 1),
        **held,
        "clips by node": used,
        "freed_s": freed_s,
        "load": round(os.getloadavg()[0], 1),
    }


def _freed_s() -> float:
    """Return the seconds until no worker holds a processor; fail where one does for a minute."""
    import ray

    began = time.monotonic()
    while (left := ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)) > 0:
        if time.monotonic() - began > _MOST_FREED_S:
            raise RuntimeError(f"workers hold {left:g} processors although all is done")
        time.sleep(0.1)
    return round(time.monotonic() - began, 1)


def main() -> None:
    """Print a JSON line for each way of each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--ways", nargs="*", default=["fixed", "planned", "ray"])
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for name in options.shapes:
        fixed_s = None
        for found in run(SHAPES[name], options.ways):
            fixed_s = found["wall_s"] if found["way"] == "fixed" else fixed_s
            ratio = {"ratio": round(found["wall_s"] / fixed_s, 2)} if fixed_s else {}
            print(json.dumps({"shape": name, **found, **ratio}), flush=True)


if __name__ == "__main__":
    main()
