"""The numbers of a bucket report add up and describe what the plan will run."""

import json

import numpy as np
import pyarrow as pa
import pytest

from reelweave.loader.buckets.assignment import BucketConfig, assign
from reelweave.loader.buckets.stats import DatasetStats, dataset_stats
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset.plan_index import PlanIndex
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout
from tests.loader.samples import plan_index

CONFIG = BucketConfig(
    frames=(1, 17, 49),
    sizes=((240, 416), (480, 832), (480, 480)),
    compression=Compression(frames=8, height=16, width=16, causal=True),
    max_text_tokens=64,
    memory_tokens=20_000,
    compute_budget=1e8,
    max_batch=16,
)


@pytest.fixture
def index() -> PlanIndex:
    generator = np.random.default_rng(0)
    return plan_index(
        frames=generator.integers(1, 120, 500),
        height=generator.choice([180, 240, 480, 720], 500),
        width=generator.choice([320, 426, 854, 1280], 500),
        text_tokens=generator.integers(0, 100, 500),
    )


def stats_of(index: PlanIndex, config: BucketConfig = CONFIG) -> DatasetStats:
    keys = pa.chunked_array([[f"key{number}" for number in range(len(index))]], pa.string())
    return dataset_stats(index, keys, config)


def test_totals_are_the_sums_of_the_parts(index: PlanIndex) -> None:
    stats = stats_of(index)
    assert stats.samples == stats.assigned + len(stats.unassigned) == 500
    assert stats.assigned == sum(bucket.samples for bucket in stats.buckets) > 0
    assert stats.tokens == sum(bucket.samples * bucket.length for bucket in stats.buckets)
    assert stats.hours == pytest.approx(index.frames.sum() / 24 / 3600)
    assert sum(stats.unassigned_reasons.values()) == len(stats.unassigned) > 0
    assert sum(bucket.token_share for bucket in stats.buckets) == pytest.approx(1)
    assert sum(bucket.cost_share for bucket in stats.buckets) == pytest.approx(1)
    assert max(bucket.microbatch_cost for bucket in stats.buckets) == 1
    for histogram in (stats.duration_s, stats.short_side_px, stats.clip_tokens):
        assert sum(histogram.counts) == 500
        assert len(histogram.edges) == len(histogram.counts) + 1


def test_each_bucket_is_described_as_the_plan_runs_it(index: PlanIndex) -> None:
    stats = stats_of(index)
    assignment = assign(index, CONFIG)
    microbatches: dict[tuple[int, int, int], list[int]] = {}
    for step in plan_epoch(assignment, seed=0, epoch=0, layout=StepLayout(1)):
        [micro] = step.microbatches
        bucket = assignment.buckets[micro.bucket]
        microbatches.setdefault((bucket.frames, bucket.height, bucket.width), []).append(len(micro.rows))
    assert len(stats.buckets) == len(microbatches)
    for bucket in stats.buckets:
        sizes = microbatches[bucket.frames, bucket.height, bucket.width]
        assert bucket.microbatches == len(sizes)
        assert bucket.samples == sum(sizes)
        assert bucket.batch >= max(sizes)


def test_bounds_and_shares_of_a_hand_made_dataset() -> None:
    index = plan_index([17, 17, 17, 49], 480, 480, text_tokens=[10, 64, 65, 1000])
    short, long = stats_of(index).buckets
    assert (short.samples, short.length, short.batch, short.bound) == (3, 64 + 3 * 900, 7, "memory")
    assert (long.samples, long.length, long.batch, long.bound) == (1, 64 + 7 * 900, 2, "compute")
    assert (short.long_captions, long.long_captions) == (1, 1)
    assert short.bounds == {"memory": 7, "compute": 13, "max_batch": 16}
    assert long.bounds == {"memory": 3, "compute": 2, "max_batch": 16}
    assert short.padding_share == pytest.approx(54 / (3 * 2764))
    assert long.padding_share == 0
    assert long.cost_share == pytest.approx(6364**2 / (6364**2 + 3 * 2764**2))
    assert short.microbatch_cost == pytest.approx(7 * 2764**2 / (2 * 6364**2))
    assert (short.over_limit, long.over_limit) == (1, 1)
    slow = stats_of(index, CONFIG.model_copy(update={"compute_budget": 2e7})).buckets[1]
    assert (slow.batch, slow.bound) == (1, "one")
    assert slow.over_limit == pytest.approx(6364**2 / 2e7)
    unbound = stats_of(index, CONFIG.model_copy(update={"compute_budget": None})).buckets[1]
    assert unbound.over_limit is None


def test_histograms_show_only_the_range_that_occurs() -> None:
    index = plan_index([48, 240, 172_800], [480, 720, 8000], [854, 1280, 8000])
    durations = stats_of(index).duration_s
    assert durations.edges[0] == 2
    assert durations.edges[-1] > 7200
    assert (durations.counts[0], durations.counts[-1]) == (1, 1)
    sides = stats_of(index).short_side_px
    assert dict(zip(sides.edges, sides.counts, strict=False))[720] == 1


def test_a_long_index_is_counted_in_parts() -> None:
    shapes = np.array([(17, 480, 480, 10), (49, 480, 854, 65), (5, 720, 1280, 5)])
    order = np.random.default_rng(0).integers(0, 3, 2_200_000)
    one, many = (
        stats_of(plan_index(*shapes.T)),
        dataset_stats(plan_index(*shapes[order].T), pa.chunked_array([], pa.string()), CONFIG),
    )
    times = np.bincount(order).tolist()
    assert (one.assigned, many.assigned) == (3, len(order))
    assert many.hours == pytest.approx(shapes[order, 0].sum() / 24 / 3600)
    assert sorted(bucket.samples for bucket in many.buckets) == sorted(times)
    assert sum(bucket.long_captions for bucket in many.buckets) == times[1]
    for short, long in (
        (one.duration_s, many.duration_s),
        (one.short_side_px, many.short_side_px),
        (one.clip_tokens, many.clip_tokens),
    ):
        assert long.edges == short.edges
        assert sum(long.counts) == len(order)


def test_the_report_is_plain_json(index: PlanIndex) -> None:
    report = stats_of(index).to_dict()
    assert json.loads(json.dumps(report)) == report


def test_an_empty_index_has_an_empty_report() -> None:
    stats = stats_of(plan_index([], 480, 480))
    assert (stats.samples, stats.tokens, stats.buckets, stats.duration_s.counts) == (0, 0, [], [])
