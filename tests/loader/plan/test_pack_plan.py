"""Packs in the real plan: every sample once, the cap holds, ranks have equal work, any interruption is survived."""

import itertools
import json

import numpy as np
import pytest

from reelweave.loader.batch import Pack
from reelweave.loader.buckets.assignment import Assignment, BucketConfig, assign
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.plan.epoch_plan import DoneSegment, plan_epoch
from reelweave.loader.plan.policy import Policy, StepLayout
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.samples import plan_index
from tests.loader.stream_clips import SAMPLES, config
from tests.media import read_number

CONFIG = BucketConfig(
    frames=(1, 9, 17, 33),
    sizes=((64, 64), (64, 128), (128, 128)),
    compression=Compression(frames=8, height=16, width=16, causal=True),
    max_text_tokens=20,
    memory_tokens=1200,
)


def mixed_index(samples: int, seed: int = 0) -> PlanIndex:
    generator = np.random.default_rng(seed)
    return plan_index(
        frames=generator.choice([1, 9, 10, 17, 40], samples),
        height=generator.choice([64, 128], samples),
        width=128,
        text_tokens=generator.integers(0, 40, samples),
    )


def mixed(samples: int, seed: int = 0) -> Assignment:
    return assign(mixed_index(samples, seed), CONFIG)


@pytest.mark.parametrize(("ranks", "packs"), [(1, 1), (3, 2), (4, 4)])
@pytest.mark.parametrize("policy", ["balanced", "equal_token"])
def test_every_sample_is_in_one_pack_and_no_pack_is_too_large(ranks: int, packs: int, policy: Policy) -> None:
    assignment, counted = mixed(900), []
    plan = plan_epoch(assignment, 3, 0, StepLayout(ranks, packs, policy, "pack"))
    for step in plan:
        assert [(micro.rank, micro.slot) for micro in step.microbatches] == list(
            itertools.product(range(ranks), range(packs))
        )
        assert sum(micro.weight for micro in step.microbatches) == pytest.approx(1)
        for micro in step.microbatches:
            assert assignment.own_lengths(micro.rows).sum() <= 1200
            counted += micro.rows.tolist() if micro.weight else []
    assert sorted(counted) == np.flatnonzero(assignment.bucket_of >= 0).tolist()


@pytest.mark.parametrize("policy", ["balanced", "equal_token"])
def test_samples_about_as_long_as_a_pack_end_no_epoch_early(policy: Policy) -> None:
    """Where the next samples are as many as packs and fill them, others may still follow."""
    assignment = assign(mixed_index(300), CONFIG.model_copy(update={"memory_tokens": 300}))
    for ranks in (1, 2, 3):
        plan = plan_epoch(assignment, 3, 0, StepLayout(ranks, 1, policy, "pack"))
        counted = [row for step in plan for micro in step.microbatches if micro.weight for row in micro.rows]
        assert sorted(counted) == np.flatnonzero(assignment.bucket_of >= 0).tolist()


def test_packs_mix_shapes_and_cost_the_same() -> None:
    assignment = mixed(4000)
    plan = plan_epoch(assignment, 3, 0, StepLayout(8, 2, "balanced", "pack"))
    idle = []
    for step in range(len(plan) - 1):
        members, placement = plan.place_step(step)
        loads = np.bincount(placement.rank, plan.costs(members))
        idle.append(1 - loads.mean() / loads.max())
        kinds = [len(set(assignment.bucket_of[micro.rows].tolist())) for micro in plan[step].microbatches]
        assert np.mean(kinds) > 3
    assert np.mean(idle) < 0.01


def test_interrupted_at_changing_ranks_every_sample_counts_once() -> None:
    generator = np.random.default_rng(0)
    for seed in range(3):
        assignment, done, counted = mixed(500, seed), list[DoneSegment](), list[int]()
        while True:
            ranks, packs = generator.integers(1, 4, 2).tolist()
            layout = StepLayout(ranks, packs, "balanced", "pack" if generator.integers(3) else "step")
            plan = plan_epoch(assignment, seed, 1, layout, done)
            steps = int(generator.integers(1, max(2, len(plan) // 2)))
            for step in itertools.islice(plan, steps):
                counted += [row for micro in step.microbatches if micro.weight for row in micro.rows.tolist()]
            if steps >= len(plan):
                break
            done.append(DoneSegment(assignment, layout, steps))
        assert sorted(counted) == np.flatnonzero(assignment.bucket_of >= 0).tolist()


def test_a_stand_in_has_the_shape_of_the_sample(dataset: Dataset) -> None:
    assignment = mixed(300)
    plan = plan_epoch(assignment, 3, 0, StepLayout(2, 2, "balanced", "pack"))
    micro = plan[1].microbatches[2]
    for number, row in enumerate(micro.rows.tolist()):
        found = [stand_in for stand_in, _ in plan.stand_ins(micro, number)]
        assert set(assignment.bucket_of[found].tolist()) <= {int(assignment.bucket_of[row])}
        assert (
            sorted([row, *found])
            == np.flatnonzero(assignment.bucket_of == assignment.bucket_of[row]).tolist()
        )


def test_a_stream_hands_out_packs_and_resumes_between_them(dataset: Dataset) -> None:
    settings = config(regime="pack", microbatches=2, epochs=2)
    streams = [VideoStream(dataset, settings, rank, 2) for rank in range(2)]
    ranks = [list(stream) for stream in streams]
    for epoch in (0, 1):
        found = [pack for rank in ranks for pack in rank if pack.epoch == epoch]
        counted = sorted(key for pack in found if pack.weight for key in pack.keys)
        assert counted == [f"key{number:02}" for number in range(SAMPLES)]
    shapes = set()
    for pack in ranks[0]:
        assert isinstance(pack, Pack)
        assert sum(pack.lengths) <= settings.buckets.memory_tokens
        assert (
            len(pack.videos) == len(pack.keys) == len(pack.captions) == len(pack.buckets) == len(pack.passes)
        )
        for bucket, video_CTHW in zip(pack.buckets, pack.videos, strict=True):
            assert video_CTHW.shape == (3, bucket.frames, bucket.height, bucket.width)
            numbers = [read_number(picture) for picture in video_CTHW.numpy().transpose(1, 2, 3, 0)]
            assert numbers == list(range(numbers[0], numbers[0] + bucket.frames))
        shapes.add(len(set(pack.buckets)))
    assert max(shapes) > 1
    iterator = iter(streams[0])
    assert list(iterator) == []
    again = VideoStream(dataset, settings, 1, 2)
    again.load_state_dict(json.loads(json.dumps(streams[0].state_after(ranks[0][3]))))
    rest = [(pack.step, pack.keys, pack.weight) for pack in again]
    assert rest == [
        (pack.step, pack.keys, pack.weight) for pack in ranks[1] if pack.step >= ranks[0][3].after.step
    ]


def test_a_policy_that_makes_no_packs_is_refused() -> None:
    with pytest.raises(ValueError, match="policy same_bucket makes no packs"):
        config(regime="pack", policy="same_bucket")
