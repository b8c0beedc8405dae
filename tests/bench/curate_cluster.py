"""A curation on a cluster that loses nodes, simulated: hours, work done twice, and money at spot prices.

    python -m tests.bench.curate_cluster [--sources 67300 --nodes 32 --cores 16]
    python -m tests.bench.curate_cluster --real

The second holds the simulation to Ray: sources that sleep, on two nodes (two raylets on this machine), with and without
the loss of one. Sources go out largest first, in at most 4,096 blocks, each on one core: dealt out to them in turn, as
the runner does, or neighbours in one block, as it did. What a lost node had finished stays in the ledger; the source
that each of its cores was at is done again.
"""

import argparse
import heapq
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.run.runners.passes import run_pass
from reelweave.curate.run.runners.pipeline import _MAX_BLOCKS, Stage

_LOSSES = (0.0, 0.02, 0.05, 0.1, 0.5)
"""Per node and hour."""
_ON_DEMAND, _SPOT = 0.04, 0.012
"""$ a core-hour; 70 % less is a usual price of spot nodes."""
_FPS, _SOURCE_FPS, _SOURCE_S, _SPREAD = 41.8, 25.0, 1000.0, 1.0
"""Frames that a core curates a second, those of a source, its mean length, and the spread of its logarithm."""


@dataclass(frozen=True)
class Cluster:
    """Nodes of one kind.

    Attributes:
        nodes: number of nodes.
        cores: cores of each, each of which works on one block at a time.
        losses_per_hour: rate at which each node is lost.
        replace_s: seconds until another stands in its place; None if none ever does.
        notice_s: seconds until what a lost node was at is given to others.
    """

    nodes: int
    cores: int
    losses_per_hour: float = 0.0
    replace_s: float | None = 300.0
    notice_s: float = 10.0


@dataclass(frozen=True)
class Outcome:
    """Result of a simulated run.

    Attributes:
        wall_s: seconds until the last source is done.
        work_s: core-seconds of sources that were done.
        lost_s: core-seconds of sources that were begun and lost.
        paid_s: core-seconds that nodes were there.
        losses: number of lost nodes.
    """

    wall_s: float
    work_s: float
    lost_s: float
    paid_s: float
    losses: int


@dataclass
class _Block:
    """Sources that one core takes in their order; the first ``done`` are in the ledger."""

    costs_s: Sequence[float]
    done: int = 0

    @property
    def left_s(self) -> float:
        return float(sum(self.costs_s[self.done :]))

    def interrupt(self, elapsed_s: float) -> float:
        """Keep what was finished within this time and return what is lost of it."""
        while self.done < len(self.costs_s) and self.costs_s[self.done] <= elapsed_s:
            elapsed_s -= self.costs_s[self.done]
            self.done += 1
        return elapsed_s


def simulate(
    costs_s: Sequence[float],
    cluster: Cluster,
    seed: int = 0,
    lost_at: Mapping[int, float] | None = None,
    dealt: bool = False,
) -> Outcome:
    """Play a run, event by event.

    Args:
        costs_s: core-seconds of each source.
        cluster: nodes, and how often they are lost.
        seed: of the losses.
        lost_at: second at which each of some nodes is lost, once and for good, in place of losses by chance.
        dealt: sources are dealt out to the blocks in turn, instead of neighbours in one block.
    """
    chance = np.random.default_rng(seed)
    ordered = sorted(costs_s, reverse=True)
    count = min(len(ordered), _MAX_BLOCKS)
    if dealt:
        parts = [ordered[start::count] for start in range(count)]
    else:
        parts = [part.tolist() for part in np.array_split(np.array(ordered), count)]
    waiting = [_Block(part) for part in parts][::-1]
    events: list[tuple[float, int, str, int, int]] = []  # second, number, kind, node, life of the node
    running: dict[tuple[int, int], list[tuple[float, _Block]]] = {}
    noticed: dict[tuple[int, int], list[_Block]] = {}
    born: dict[int, float] = {}
    lives = [0] * cluster.nodes
    paid = lost = now = 0.0
    unfinished, losses, number = count, 0, 0

    def push(at: float, kind: str, node: int) -> None:
        nonlocal number
        number += 1
        heapq.heappush(events, (at, number, kind, node, lives[node]))

    def fill(node: int) -> None:
        place = running[node, lives[node]]
        while waiting and len(place) < cluster.cores:
            block = waiting.pop()
            place.append((now, block))
            push(now + block.left_s, "end", node)

    for node in range(cluster.nodes):
        push(0.0, "join", node)
    while unfinished:
        now, _, kind, node, life = heapq.heappop(events)
        if kind == "notice":
            waiting += noticed.pop((node, life))
            for other in born:
                fill(other)
            continue
        if life != lives[node]:
            continue
        if kind == "join":
            running[node, life], born[node] = [], now
            if lost_at and node in lost_at:
                push(lost_at[node], "loss", node)
            elif not lost_at and cluster.losses_per_hour:
                push(now + chance.exponential(3600 / cluster.losses_per_hour), "loss", node)
            fill(node)
        elif kind == "end":
            place = running[node, life]
            place.remove(min(place, key=lambda one: abs(one[0] + one[1].left_s - now)))
            unfinished -= 1
            fill(node)
        else:
            losses += 1
            paid += cluster.cores * (now - born.pop(node))
            back = running.pop((node, life))
            for began, block in back:
                lost += block.interrupt(now - began)
            noticed[node, life] = [block for _, block in back]
            push(now + cluster.notice_s, "notice", node)
            lives[node] += 1
            if cluster.replace_s is not None and not lost_at:
                push(now + cluster.replace_s, "join", node)
    paid += sum(cluster.cores * (now - since) for since in born.values())
    return Outcome(now, float(sum(costs_s)), lost, paid, losses)


def table(sources: int, nodes: int, cores: int) -> list[str]:
    """Return the table of losses, as lines."""
    chance = np.random.default_rng(0)
    lengths = chance.lognormal(np.log(_SOURCE_S) - _SPREAD**2 / 2, _SPREAD, sources)
    lengths = np.minimum(lengths, ProbeConfig().max_duration_s)
    costs = (lengths * _SOURCE_FPS / _FPS).tolist()
    lines = [
        "| blocks | losses per node and hour | hours | nodes lost | done twice | idle | $ on demand | $ spot |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dealt in (False, True):
        for rate in _LOSSES:
            found = simulate(costs, Cluster(nodes, cores, rate), seed=1, dealt=dealt)
            idle = 1 - (found.work_s + found.lost_s) / found.paid_s
            money = [f"{found.paid_s / 3600 * price:,.0f}" for price in (_ON_DEMAND, _SPOT)]
            cells = [
                "dealt" if dealt else "of neighbours",
                f"{rate:g}",
                f"{found.wall_s / 3600:.1f}",
                str(found.losses),
            ]
            cells += [f"{found.lost_s / found.paid_s:.2%}", f"{idle:.1%}", *money]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


class Sleeper:
    """Sources that take their time, and nothing of a processor; what is done is noted, as in the ledger."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger

    def __call__(self, tasks: Sequence[tuple[int, float]]) -> Iterator[tuple[int, float]]:
        """Yield each source when it is done."""
        for number, cost_s in tasks:
            done = self.ledger / str(number)
            if not done.exists():
                time.sleep(cost_s)
                done.touch()
            yield number, cost_s


def real(costs_s: Sequence[float], cores: int, lost_after_s: float | None) -> float:
    """Run sleeping sources on two nodes, the second of which may be lost; seconds from the first to the last."""
    import ray
    from ray.cluster_utils import Cluster as Raylets

    cluster = Raylets(initialize_head=True, head_node_args={"num_cpus": cores})
    second = cluster.add_node(num_cpus=cores)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        with tempfile.TemporaryDirectory() as before, tempfile.TemporaryDirectory() as ledger:
            # Workers are started and modules imported before the clock runs.
            first = [Stage("sources", Sleeper(Path(before)))]
            run_pass("sources", [(n, 0.5) for n in range(4 * cores)], first, "ray", lambda _: None)
            return _timed(
                costs_s, Path(ledger), lost_after_s, lambda: cluster.remove_node(second, allow_graceful=False)
            )
    finally:
        ray.shutdown()
        cluster.shutdown()


def _timed(
    costs_s: Sequence[float], ledger: Path, lost_after_s: float | None, lose: Callable[[], None]
) -> float:
    stages = [Stage("sources", Sleeper(ledger))]
    done: list[Any] = []
    tasks = list(enumerate(sorted(costs_s, reverse=True)))
    began = time.monotonic()
    if lost_after_s is not None:
        threading.Timer(lost_after_s, lose).start()
    run_pass("sources", tasks, stages, "ray", done.append)
    wall = time.monotonic() - began
    assert sorted(done) == tasks
    return wall


def compare(cores: int, lost_after_s: float) -> None:
    """Print real and simulated seconds of both runs as JSON lines."""
    costs = np.random.default_rng(3).lognormal(np.log(3.0), 0.5, 14 * cores).round(2).tolist()
    for lost in (None, lost_after_s):
        found = real(costs, cores, lost)
        expected = simulate(costs, Cluster(2, cores), lost_at={1: lost} if lost else None).wall_s
        row = {"lost_after_s": lost, "wall_s": round(found, 1), "simulated_s": round(expected, 1)}
        print(json.dumps(row | {"ratio": round(found / expected, 2)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=int, default=67_300)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--real", action="store_true", help="compare with Ray on two nodes")
    options = parser.parse_args()
    if options.real:
        compare(cores=2, lost_after_s=12.0)
    else:
        print("\n".join(table(options.sources, options.nodes, options.cores)))


if __name__ == "__main__":
    main()
