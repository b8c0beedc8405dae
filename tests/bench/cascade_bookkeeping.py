"""What the executor takes of a step by itself: cascades that compute nothing, with handoffs of real size.

    python -m tests.bench.cascade_bookkeeping [--ranks 8] [--rounds 5]
    python -m tests.bench.cascade_bookkeeping --lists 256x1024

HunyuanVideo's latents (float32, 16 x T x 90 x 160) and contexts (256 x 4096 bfloat16) of drawn 720p videos go where the
plan wants them; every rank is a process, and all share this machine's processors and memory, so a step takes as long as
the work of all ranks together. Prints rows of docs/benchmarks/cascade_plans.md. With `--lists`, one process makes the
lists of a step of so many samples on so many GPUs, and prints the processor time of each.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reelweave.train.cascade.execution.agreement import agree
from reelweave.train.cascade.execution.executor import Executor
from reelweave.train.cascade.execution.handoffs import handoff_bytes, plan_transfers
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.execution.order import bounded, in_order, with_openings
from reelweave.train.cascade.execution.pool import GroupPool
from reelweave.train.cascade.execution.step import AgreedStep
from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.paper.cases import DEGREES, at_720p
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.distributed.world import World, join
from reelweave.train.measure.timings import StepClock
from tests.bench import cascade_bookkeeping
from tests.train.cascade.execution.plans import Sample, TinyWork
from tests.train.ranks import Ranks


class Nothing(TinyWork):
    """Makes tensors of the right size."""

    frames: list[int]

    def input_specs(self, cascade):
        return []

    def output_specs(self, cascade):
        if cascade.module == Module.TEXT:
            return [TensorSpec((256, 4096), torch.bfloat16)]
        return [TensorSpec((16, 1 + (self.frames[cascade.sample] - 1) // 4, 90, 160), torch.float32)]

    def make(self, cascade, numbers, taken):
        parts = self.output_specs(cascade)
        return [torch.empty(parts[number].shape, dtype=parts[number].dtype) for number in numbers]

    def train(self, sample, given, context, first):
        pass


def steps(frames: list[int], rows: list[dict[str, Any]], rounds: int, out: str) -> None:
    """A rank's program: the same plan again and again; rank 0 writes how long each step takes."""
    with join("cpu") as world:
        schedule = Schedule.from_rows(rows, world.size)
        sample = Sample(0, 1, 13, 8, owner=0, stored=False, text="cascade")
        work = Nothing(None, [sample] * len(frames), world.rank, torch.float32)
        work.frames = frames
        menu = GroupMenu.of(world.size, DEGREES)
        executor = Executor(world, GroupPool(world, 24, menu.groups()))
        taken = []
        for _ in range(rounds + 1):
            world.barrier()
            began = time.perf_counter()
            executor.run(schedule, work, StepClock(world))
            world.barrier()
            taken.append(time.perf_counter() - began)
        if world.rank == 0:
            Path(out).write_text(json.dumps(taken))


def lists(samples: int, gpus: int, rounds: int) -> dict[str, float]:
    """Processor milliseconds of a rank behind the plan of a step and before its first cascade: the median of each."""
    frames_S = 13 + 4 * np.random.default_rng(7).integers(0, 30, samples)
    runs = plan(at_720p(frames_S, gpus), menu=GroupMenu.of(gpus, DEGREES)).best.runs
    own = [
        Sample(0, 1, 13, 8, owner=s * gpus // samples, stored=False, text="cascade") for s in range(samples)
    ]
    work = Nothing(None, own, 0, torch.float32)
    work.frames = frames_S.tolist()
    rank = World(0, gpus, torch.device("cpu"))
    alone, taken = World(0, 1, torch.device("cpu")), defaultdict(list)

    def timed(name: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        made = act()
        taken[name].append((time.process_time() - began) * 1e3)
        return made

    for _ in range(rounds):
        order = timed("order", lambda: in_order(runs))
        moves = timed("transfers", lambda order=order: plan_transfers(order, work, 8))
        sizes = timed("bytes", lambda moves=moves: handoff_bytes(moves))
        events = timed("openings", lambda order=order, moves=moves: with_openings(order, moves, 2))
        events = timed("bound", lambda events=events, sizes=sizes: bounded(events, sizes, 2 << 30))
        timed("digest", lambda events=events: agree(alone, events, work))
        given = events, moves, sizes, None, work, None, rank, None
        timed("step", lambda given=given: AgreedStep(*given))
    return {name: statistics.median(each) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lists", metavar="SxN", help="samples and GPUs")
    options = parser.parse_args()
    if options.lists:
        found = lists(*map(int, options.lists.split("x")), options.rounds)
        parts = ", ".join(f"{name} {ms:.1f}" for name, ms in found.items())
        print(f"{options.lists}: {sum(found.values()):.1f} ms ({parts})")
        return
    print("| ranks | samples | cascades | planned s | first step s | later steps s | share |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, Ranks() as ranks:
        for per_rank in (0.25, 1, 4):
            frames_S = 13 + 4 * np.random.default_rng(7).integers(0, 30, round(per_rank * options.ranks))
            menu = GroupMenu.of(options.ranks, DEGREES)
            made = plan(at_720p(frames_S, options.ranks), menu=menu).best
            out = Path(folder) / "taken.json"
            # Ranks import what they run by its name, which is not __main__.
            ended = ranks.run(
                cascade_bookkeeping.steps,
                options.ranks,
                frames_S.tolist(),
                made.rows(),
                options.rounds,
                str(out),
            )
            if any(ended.codes):
                raise SystemExit("\n".join(ended.errors))
            first_s, *others = json.loads(out.read_text())
            step_s = statistics.median(others)
            print(
                f"| {options.ranks} | {len(frames_S)} | {len(made.runs)} | {made.makespan_s:.1f} | {first_s:.2f} |"
                f" {step_s:.3f} | {step_s / made.makespan_s:.2%} |"
            )


if __name__ == "__main__":
    main()
