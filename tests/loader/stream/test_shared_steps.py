"""Shared tails: every sample is trained once in its step by whichever rank is free; gradients stay what they are."""

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from reelweave.loader.buckets.cost import PowerCost, seconds
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.loader.stream.stealing.piece_queues import PieceQueues
from reelweave.loader.stream.stealing.shared_steps import SharedSteps
from reelweave.loader.stream.stealing.step_split import StepSplit, WorkStealingConfig, split_step, victims
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream.shared_steps_worker import BEFORE, run
from tests.loader.stream_clips import SAMPLES, config
from tests.train.ranks import Ranks

DEFAULT = WorkStealingConfig()


def step_of(
    name: str, ranks: int, microbatches: int, fixed_s: float = 0.0
) -> tuple[np.ndarray, np.ndarray, StepSplit]:
    workload = WORKLOADS[name]
    drawn = workload.draw(workload.batch_sizes(workload.budgets), 0, 0, ranks * microbatches)
    costs = seconds(PowerCost(), drawn.batch, drawn.length) + fixed_s
    counts = np.ones(len(costs), np.bool_)
    return costs, drawn.batch, split_step(costs, drawn.batch, counts, fixed_s, ranks, DEFAULT)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 1), (4, 1), (8, 2), (64, 4)])
def test_every_sample_is_either_placed_or_in_one_piece(name: str, ranks: int, microbatches: int) -> None:
    costs, sizes, tail = step_of(name, ranks, microbatches)
    held = [(number, sample) for number in tail.fixed.tolist() for sample in range(sizes[number])]
    for micro, start, size in zip(tail.micro.tolist(), tail.start.tolist(), tail.size.tolist(), strict=True):
        assert size > 0
        held += [(micro, start + sample) for sample in range(size)]
    assert sorted(held) == [
        (number, sample) for number in range(len(costs)) for sample in range(sizes[number])
    ]
    assert set(tail.fixed_rank.tolist()) == set(range(ranks))
    assert (np.diff(tail.home) >= 0).all()


def test_pieces_are_short_and_no_more_than_asked_for() -> None:
    costs, sizes, tail = step_of("koala-wide", 128, 4, fixed_s=1e6)
    load = costs.sum() / 128
    piece = 1e6 + tail.size * ((costs - 1e6) / sizes)[tail.micro]
    assert piece.max() < 0.02 * load + ((costs - 1e6) / sizes)[tail.micro].max()
    assert 0.1 < piece.sum() / costs.sum() < 0.15
    planned = np.bincount(tail.fixed_rank, costs[tail.fixed]) + np.bincount(tail.home, piece, 128)
    assert planned.max() < 1.02 * planned.mean()


def test_fillers_are_not_shared() -> None:
    tail = split_step(
        np.ones(12), np.full(12, 8), np.arange(12) < 6, 0.0, 2, WorkStealingConfig(share=0.5, piece=0.5)
    )
    assert tail.micro.max() < 6


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 100, 128])
def test_work_can_pass_from_every_rank_to_every_other_one(ranks: int) -> None:
    reached, some = {0}, [0]
    while some:
        found = victims(some.pop(), ranks, 4).tolist()
        assert len(set(found)) == len(found) < 4
        some += [rank for rank in found if rank not in reached]
        reached |= set(found)
    assert reached == set(range(ranks))
    assert 0 not in victims(0, ranks, 4)


def test_every_number_is_taken_once_by_ranks_that_are_apart_by_steps() -> None:
    store, ranks, steps, count = dist.HashStore(), 4, 30, 5
    found: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]

    def work(rank: int) -> None:
        generator = np.random.default_rng(rank)
        claims = PieceQueues(store, "pass", rank, [rank, (rank + 1) % ranks], "here")
        for step in range(steps):
            begin, end = step * count, (step + 1) * count
            while (number := claims.take(rank, begin, end)) is not None:
                found[rank].append((rank, number))
            other = (rank + 1) % ranks
            while generator.random() < 0.8 and claims.count_left(other, begin, end):
                if (number := claims.take(other, begin, end)) is not None:
                    found[rank].append((other, number))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = sorted(piece for own in found for piece in own)
    assert everything == [(rank, number) for rank in range(ranks) for number in range(steps * count)]


def test_a_store_of_another_start_and_another_state_are_refused() -> None:
    store = dist.HashStore()
    PieceQueues(store, "pass", 0, [0, 1], "step 3")
    with pytest.raises(UsageError, match="pass of rank 0 already"):
        PieceQueues(store, "pass", 0, [0, 1], "step 3")
    with pytest.raises(UsageError, match=r"rank 1 begins pass pass with step 4.*with step 3"):
        PieceQueues(store, "pass", 1, [1, 0], "step 4")


def test_what_cannot_be_shared_is_refused(dataset: Dataset) -> None:
    for changes in ({"regime": "slot"}, {"regime": "pack"}, {"policy": "equal_token"}):
        with pytest.raises(UsageError, match="regime=step and policy=balanced"):
            SharedSteps(VideoStream(dataset, config(**changes)), dist.HashStore())
    steps = iter(SharedSteps(VideoStream(dataset, config(microbatches=3)), dist.HashStore()))
    next(iter(next(steps)))
    with pytest.raises(UsageError, match="step 0 was left before its end"):
        next(steps)


def test_ranks_share_with_a_slow_one_and_nothing_else_changes(
    tmp_path: Path, folder: Path, ranks: Ranks
) -> None:
    shutil.copytree(folder, tmp_path / "data")
    ended = ranks.run(run, 2, str(tmp_path))
    assert ended.codes == [0, 0], ended.errors
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    steps = len(told[0]["ran"])
    assert steps == len(told[1]["ran"]) == len(told[0]["alone"]) > BEFORE
    keys = [f"key{number:02}" for number in range(SAMPLES)]
    counted = sorted((epoch, key) for one in told for step in one["ran"] for epoch, _, key in step)
    assert counted == [(epoch, key) for epoch in range(4) for key in keys]
    assert all(step == at for one in told for at, own in enumerate(one["ran"]) for _, step, _ in own)
    torch.testing.assert_close(
        torch.tensor(told[0]["gradients"]), torch.tensor(told[0]["alone"]), rtol=1e-6, atol=1e-9
    )
    slow, fast = (sum(len(step) for step in one["ran"]) for one in told)
    assert slow < 0.7 * fast
    assert told[0]["state"] == told[1]["state"]
