"""Idle time with costs that are off, with and without a shared tail: in simulation, and with a real store.

    python -m tests.bench.shared_tail [--ranks 128 --steps 10]
    python -m tests.bench.shared_tail --live 64      # ranks are threads that sleep as long as work takes

Prints Markdown. Each microbatch, and each piece of one, really costs so much more or less (standard deviation).
"Samples read more" are those that a rank reads for others, relative to the step's own.
"""

import argparse
import heapq
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch.distributed as dist

from reelweave.loader.base.arrays import Floats, Places
from reelweave.loader.buckets.cost import PowerCost, seconds
from reelweave.loader.paper.workloads import WORKLOADS
from reelweave.loader.plan.balance import balanced
from reelweave.loader.stream.stealing.piece_queues import PieceQueues
from reelweave.loader.stream.stealing.step_split import StepSplit, WorkStealingConfig, split_step, victims

ERRORS = (0.02, 0.05, 0.10)
STEP_S = 4.0  # of a live step


@dataclass(frozen=True, eq=False)
class Step:
    """One step: what is planned and what it really takes.

    Attributes:
        tail: its division.
        fixed_R: float64 [ranks], what the fixed microbatches of each rank really take.
        piece_P: float64 [P], the same of each piece.
        planned_R: float64 [ranks], what each rank really takes by a plan that shares nothing.
        more: samples that are read more than once, relative to all.
    """

    tail: StepSplit
    fixed_R: Floats
    piece_P: Floats
    planned_R: Floats
    more: float


def step_of(
    name: str, ranks: int, microbatches: int, number: int, error: float, config: WorkStealingConfig
) -> Step:
    """Draw a step of a named mixture."""
    workload = WORKLOADS[name]
    drawn = workload.draw(workload.batch_sizes(workload.budgets), 0, number, ranks * microbatches)
    costs = seconds(PowerCost(), drawn.batch, drawn.length)
    tail = split_step(costs, drawn.batch, np.ones(len(costs), np.bool_), 0.0, ranks, config)
    generator = np.random.default_rng(number)

    def off(planned: Floats) -> Floats:
        return np.asarray(planned * np.maximum(0.1, 1 + error * generator.standard_normal(len(planned))))

    read = np.bincount(tail.home, tail.size, minlength=ranks)
    others = sum(int(read[victims(rank, ranks, config.readers)].sum()) for rank in range(ranks))
    return Step(
        tail=tail,
        fixed_R=np.bincount(tail.fixed_rank, off(costs[tail.fixed]), minlength=ranks),
        piece_P=off((costs / drawn.batch)[tail.micro] * tail.size),
        planned_R=np.bincount(balanced(costs, ranks), off(costs), minlength=ranks),
        more=others / int(drawn.batch.sum()),
    )


def ends_of(step: Step, readers: int) -> Floats:
    """Return when each rank is done, event by event, as `reelweave.loader.stream.stealing` takes pieces."""
    ranks = len(step.fixed_R)
    behind = np.cumsum(np.bincount(step.tail.home, minlength=ranks))
    at = np.concatenate([[0], behind[:-1]])
    end_R = step.fixed_R.copy()
    events = [(end, rank) for rank, end in enumerate(end_R.tolist())]
    heapq.heapify(events)
    while events:
        end, rank = heapq.heappop(events)
        homes = np.concatenate([[rank], victims(rank, ranks, readers)])
        left = (behind - at)[homes]
        if not left.any():
            continue
        home = rank if left[0] else homes[left.argmax()]
        end_R[rank] = end + step.piece_P[at[home]]
        at[home] += 1
        heapq.heappush(events, (float(end_R[rank]), rank))
    assert (at == behind).all()
    return end_R


def live_ends_of(step: Step, readers: int, store: dist.Store, name: str) -> Floats:
    """The same with one thread for each rank, which sleeps for its work and takes pieces through the store."""
    ranks = len(step.fixed_R)
    count_R = np.bincount(step.tail.home, minlength=ranks)
    first_R = np.cumsum(count_R) - count_R
    scale = STEP_S / float(step.planned_R.mean())
    end_R, ran = np.zeros(ranks), np.zeros(len(step.piece_P), np.int64)
    together = threading.Barrier(ranks)

    def work(rank: int) -> None:
        others: Places = victims(rank, ranks, readers)
        claims = PieceQueues(store.clone(), name, rank, [rank, *others.tolist()], name)
        together.wait()
        began = time.monotonic()
        due = began + step.fixed_R[rank] * scale

        def run(home: int, number: int) -> None:
            nonlocal due
            piece = first_R[home] + number
            ran[piece] += 1
            due = max(due, time.monotonic()) + step.piece_P[piece] * scale
            time.sleep(max(0.0, due - time.monotonic()))

        time.sleep(step.fixed_R[rank] * scale)
        while (number := claims.take(rank, 0, count_R.item(rank))) is not None:
            run(rank, number)
        while others.size:
            left = [claims.left(home, 0, count_R.item(home)) for home in others.tolist()]
            if not max(left):
                break
            home = others.item(int(np.argmax(left)))
            if (number := claims.take(home, 0, count_R.item(home))) is not None:
                run(home, number)
        end_R[rank] = time.monotonic() - began

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ran == 1).all()
    return end_R


def idle(end_R: Floats) -> float:
    """The share of the ranks' time spent waiting."""
    return float(1 - end_R.mean() / end_R.max())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--live", type=int, metavar="RANKS")
    options = parser.parse_args()
    if options.live:
        live(options.live)
        return
    columns = "mixture", "ranks", "m", "share", "piece", "readers", "idle by plan, costs 2 / 5 / 10 % off"
    row(*columns, "shared", "samples read more")
    print("|---" * 9 + "|")
    configs = [
        WorkStealingConfig(),
        WorkStealingConfig(readers=2),
        WorkStealingConfig(readers=8),
        WorkStealingConfig(share=0.08),
    ]
    for name, microbatches, config in product(WORKLOADS, (4, 8), configs):
        found = {
            error: [
                step_of(name, options.ranks, microbatches, number, error, config)
                for number in range(options.steps)
            ]
            for error in ERRORS
        }
        planned = percents(found, lambda step: idle(step.planned_R))
        shared = percents(found, lambda step: idle(ends_of(step, config.readers)))  # noqa: B023 - used at once
        more = np.mean([step.more for step in found[0.05]])
        row(
            name,
            options.ranks,
            microbatches,
            config.share,
            config.piece,
            config.readers,
            planned,
            shared,
            f"{more:.2f}",
        )


def live(ranks: int) -> None:
    """One step with costs 5 % off."""
    config = WorkStealingConfig()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    row("mixture", "ranks", "m", "idle by plan", "simulated", "with a store")
    print("|---" * 6 + "|")
    for number, (name, microbatches) in enumerate(product(WORKLOADS, (4, 8))):
        step = step_of(name, ranks, microbatches, number, 0.05, config)
        live_R = live_ends_of(step, config.readers, store, f"{name}/{microbatches}")
        ends = (step.planned_R, ends_of(step, config.readers), live_R)
        row(name, ranks, microbatches, *(f"{idle(end_R):.1%}" for end_R in ends))


def percents(found: dict[float, list[Step]], of: Callable[[Step], float]) -> str:
    """Means over the steps, for each error."""
    return " / ".join(f"{100 * np.mean([of(step) for step in steps]):.1f}" for steps in found.values())


def row(*cells: object) -> None:
    """One line of the table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
