"""Idle time of ranks whose costs are off, or of which one is slow, with and without work stealing.

    python -m tests.bench.work_stealing                  # simulated, 16, 128 and 1,024 ranks
    python -m tests.bench.work_stealing --train OUT      # four ranks of a real run, of which the last is slow

Prints Markdown. Each microbatch, and each piece of one, really costs so much more or less (standard deviation). Of a
real run, microbatches sleep as long as their cost says, so that two processors are enough for four ranks.
"""

import argparse
import heapq
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.loader.buckets.cost import PowerCost, seconds
from reelweave.loader.plan.balance import balance_costs
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.loader.stream.stealing.step_split import StepSplit, WorkStealingConfig, split_step, victims

ERRORS = (0.02, 0.05, 0.10)
SLOW = (1.1, 1.2, 1.3)
"""Times of the one slow rank, as multiples of those of the others."""
STEP_S = 5.0  # of a real run's step, on average: what two processors really compute is small beside it


def idle(end_R: Floats) -> float:
    """Return the share of the ranks' time spent waiting."""
    return float(1 - end_R.mean() / end_R.max())


def simulate(
    name: str, ranks: int, number: int, error: float, slow: float, config: WorkStealingConfig
) -> tuple[float, float]:
    """Return a step's idle time by plan, and with work stealing."""
    workload = WORKLOADS[name]
    drawn = workload.draw(workload.batch_sizes(workload.budgets), 0, number, ranks * 4)
    costs = seconds(PowerCost(), drawn.batch, drawn.length)
    generator = np.random.default_rng(number)
    pace_R = np.ones(ranks)
    pace_R[-1] = slow

    def off(planned: Floats) -> Floats:
        return np.asarray(planned * np.maximum(0.1, 1 + error * generator.standard_normal(len(planned))))

    by_plan_R = np.bincount(balance_costs(costs, ranks), off(costs), minlength=ranks) * pace_R
    split = split_step(costs, drawn.batch, np.ones(len(costs), np.bool_), 0.0, ranks, config)
    fixed_R = np.bincount(split.fixed_rank, off(costs[split.fixed]), minlength=ranks)
    piece_P = off((costs / drawn.batch)[split.micro] * split.size)
    return idle(by_plan_R), idle(run_pieces(split, fixed_R * pace_R, piece_P, pace_R, config.readers))


def run_pieces(split: StepSplit, fixed_R: Floats, piece_P: Floats, pace_R: Floats, readers: int) -> Floats:
    """Return when each rank is done, event by event."""
    ranks = len(fixed_R)
    behind_R = np.cumsum(np.bincount(split.home, minlength=ranks))
    next_R = np.concatenate([[0], behind_R[:-1]])
    end_R = fixed_R.copy()
    events = [(end, rank) for rank, end in enumerate(end_R.tolist())]
    heapq.heapify(events)
    while events:
        end, rank = heapq.heappop(events)
        homes = np.concatenate([[rank], victims(rank, ranks, readers)])
        left = (behind_R - next_R)[homes]
        if not left.any():
            continue
        home = rank if left[0] else homes[left.argmax()]
        end_R[rank] = end + piece_P[next_R[home]] * pace_R[rank]
        next_R[home] += 1
        heapq.heappush(events, (float(end_R[rank]), rank))
    return end_R


def print_simulated(steps: int) -> None:
    """Print idle time at three sizes, for costs that are off and for a slow rank among others 5 % off."""
    print("| mixture | ranks | costs 2 / 5 / 10 % off: by plan | stealing | share 0.25, 8 readers |", end="")
    print(" 5 % off, one rank 1.1 / 1.2 / 1.3 times as slow: by plan | stealing | share 0.25, 8 readers |")
    print("|---" * 8 + "|")
    configs = WorkStealingConfig(), WorkStealingConfig(share=0.25, readers=8)
    for name in WORKLOADS:
        for ranks in (16, 128, 1024):
            numbers = range(max(2, steps * 16 // ranks))
            cells = []
            for cases in ([(error, 1.0) for error in ERRORS], [(0.05, slow) for slow in SLOW]):
                # By case and configuration: idle time by plan, and with work stealing.
                idles = np.array(
                    [
                        [
                            np.mean([simulate(name, ranks, number, *case, config) for number in numbers], 0)
                            for config in configs
                        ]
                        for case in cases
                    ]
                )
                columns = idles[:, 0, 0], idles[:, 0, 1], idles[:, 1, 1]
                cells += [" / ".join(f"{100 * value:.1f}" for value in column) for column in columns]
            print(f"| {name} | {ranks:,} | {' | '.join(cells)} |", flush=True)


def train_rank(data: str, out: str, steps: int, slow: float, steals: bool) -> None:
    """Run one rank under torchrun; its microbatches sleep for their cost, 5 % more or less."""
    from reelweave.loader.buckets.assignment import BucketConfig
    from reelweave.loader.dataset import open_dataset
    from reelweave.loader.read.stream_config import StreamConfig
    from reelweave.loader.stream.video_stream import VideoStream
    from reelweave.train.config.parallel import ParallelConfig
    from reelweave.train.loop.denoiser import DenoiserTask
    from reelweave.train.loop.trainer import Trainer
    from tests.train.clips import tiny_config

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    pace = slow if rank == size - 1 else 1.0
    generator = np.random.default_rng(rank)

    class Sleeping(Trainer):
        def task(self, ranks: Any) -> DenoiserTask:
            task = super().task(ranks)
            run = task.forward_backward

            def slept(batches: Any) -> Iterator[Any]:
                for batch in batches:
                    cost = len(batch.keys) * batch.length / tokens_of_rank
                    time.sleep(STEP_S * cost * pace * max(0.1, 1 + 0.05 * generator.standard_normal()))
                    yield batch

            setattr(task, "forward_backward", lambda batches, *rest: run(slept(batches), *rest))  # noqa: B010
            return task

    config = tiny_config(steps, every_steps=steps)
    shared = WorkStealingConfig(share=0.25, readers=4) if steals else None
    config = config.model_copy(update={"parallel": ParallelConfig(work_stealing=shared)})
    buckets = BucketConfig(
        frames=(1, 5, 9),
        sizes=((16, 24), (24, 16)),
        compression=config.compression,
        max_text_tokens=9,
        memory_tokens=1200,
        cost=PowerCost(exponent=1),
    )
    settings = StreamConfig(buckets=buckets, microbatches=4, workers=1)
    stream = VideoStream(open_dataset(data), settings, rank, size)
    plan = stream.cursor.plans.plan(stream.cursor.position)
    tokens_of_rank = float(np.mean([plan.costs(plan.members(index)).sum() for index in range(4)])) / size
    Sleeping(config, stream, Path(out)).run()


def print_trained(out: Path, steps: int) -> None:
    """Print what four ranks waited, by plan and with work stealing, in turn."""
    from reelweave.train.loop.logs.records import read_metrics
    from tests.loader.stream_clips import make_sample, write
    from tests.media import write_video

    out.mkdir(parents=True)
    clip = write_video(out / "clip.mp4", (10,), size=(80, 64)).read_bytes()
    write(out / "data", [make_sample(f"key{n:04}", clip, 10, (80, 64)) for n in range(2000)])
    print("| slow rank | by plan: s a step | waiting | stealing: s a step | waiting |\n|---|---|---|---|---|")
    for slow in (1.0, 1.2):
        cells = []
        for steals in (False, True):
            run = out / f"{slow}-{steals}"
            words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"]
            call = [str(out / "data"), str(run), str(steps), str(slow), str(int(steals))]
            subprocess.run([*words, "-m", "tests.bench.work_stealing", "--rank", *call], check=True)
            times = [line.times for line in read_metrics(run, steps)][2:]
            step_s = float(np.mean([each.step_s for each in times]))
            wait_s = float(np.mean([each.wait_s for each in times]))
            cells += [f"{step_s:.2f}", f"{wait_s / step_s:.1%}"]
        print(f"| {slow:g} times | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=32, help="steps at 16 ranks, or of a run")
    parser.add_argument("--train", type=Path, metavar="OUT", help="train four ranks; OUT is a new folder")
    parser.add_argument("--rank", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        data, out, steps, slow, steals = options.rank
        train_rank(data, out, int(steps), float(slow), bool(int(steals)))
    elif options.train:
        print_trained(options.train, options.steps)
    else:
        print_simulated(options.steps)


if __name__ == "__main__":
    main()
