"""The numbers of a bucket report add up and describe what the plan will run."""

import json

import numpy as np
import pyarrow as pa
import pytest

from loader.buckets import BucketConfig, assign
from loader.plan import plan_epoch
from loader.policy import Division
from loader.stats import dataset_stats
from loader.tokens import Compression

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
def index() -> pa.Table:
    generator = np.random.default_rng(0)
    frames = generator.integers(1, 120, 500).astype(np.int32)
    return pa.table(
        {
            "key": [f"key{number}" for number in range(500)],
            "frames": frames,
            "height": generator.choice([180, 240, 480, 720], 500).astype(np.int32),
            "width": generator.choice([320, 426, 854, 1280], 500).astype(np.int32),
            "duration_s": frames / 24,
            "text_tokens": generator.integers(0, 100, 500).astype(np.int32),
        }
    )


def test_totals_are_the_sums_of_the_parts(index: pa.Table) -> None:
    stats = dataset_stats(index, CONFIG)
    assert stats.samples == stats.assigned + len(stats.unassigned) == 500
    assert stats.assigned == sum(bucket.samples for bucket in stats.buckets) > 0
    assert stats.tokens == sum(bucket.samples * bucket.length for bucket in stats.buckets)
    assert stats.hours == pytest.approx(sum(index.column("duration_s").to_pylist()) / 3600)
    assert sum(stats.unassigned_reasons.values()) == len(stats.unassigned) > 0
    assert sum(bucket.token_share for bucket in stats.buckets) == pytest.approx(1)
    assert sum(bucket.cost_share for bucket in stats.buckets) == pytest.approx(1)
    assert max(bucket.microbatch_cost for bucket in stats.buckets) == 1
    for histogram in (stats.duration_s, stats.short_side_px, stats.clip_tokens):
        assert sum(histogram.counts) == 500
        assert len(histogram.edges) == len(histogram.counts) + 1


def test_each_bucket_is_described_as_the_plan_runs_it(index: pa.Table) -> None:
    stats = dataset_stats(index, CONFIG)
    assignment = assign(index, CONFIG)
    microbatches: dict[tuple[int, int, int], list[int]] = {}
    for step in plan_epoch(assignment, seed=0, epoch=0, division=Division(1)):
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
    table = pa.table(
        {
            "key": ["a", "b", "c", "d"],
            "frames": pa.array([17, 17, 17, 49], pa.int32()),
            "height": pa.array([480, 480, 480, 480], pa.int32()),
            "width": pa.array([480, 480, 480, 480], pa.int32()),
            "duration_s": [1.0, 2.0, 3.0, 4.0],
            "text_tokens": pa.array([10, 64, 65, 1000], pa.int32()),
        }
    )
    short, long = dataset_stats(table, CONFIG).buckets
    assert (short.samples, short.length, short.batch, short.bound) == (3, 64 + 3 * 900, 7, "memory")
    assert (long.samples, long.length, long.batch, long.bound) == (1, 64 + 7 * 900, 2, "compute")
    assert (short.long_captions, long.long_captions) == (1, 1)
    assert long.cost_share == pytest.approx(6364**2 / (6364**2 + 3 * 2764**2))
    assert short.microbatch_cost == pytest.approx(7 * 2764**2 / (2 * 6364**2))
    assert (short.over_limit, long.over_limit) == (1, 1)
    slow = dataset_stats(table, CONFIG.model_copy(update={"compute_budget": 2e7})).buckets[1]
    assert (slow.batch, slow.bound) == (1, "one")
    assert slow.over_limit == pytest.approx(6364**2 / 2e7)
    unbound = dataset_stats(table, CONFIG.model_copy(update={"compute_budget": None})).buckets[1]
    assert unbound.over_limit is None


def test_histograms_show_only_the_range_that_occurs() -> None:
    table = pa.table(
        {
            "key": ["a", "b", "c"],
            "frames": pa.array([48, 240, 250_000], pa.int32()),
            "height": pa.array([480, 720, 8000], pa.int32()),
            "width": pa.array([854, 1280, 8000], pa.int32()),
            "duration_s": [2.0, 10.0, 7200.0],
            "text_tokens": pa.array([0, 0, 0], pa.int32()),
        }
    )
    durations = dataset_stats(table, CONFIG).duration_s
    assert durations.edges[0] == 2
    assert durations.edges[-1] > 7200
    assert (durations.counts[0], durations.counts[-1]) == (1, 1)
    sides = dataset_stats(table, CONFIG).short_side_px
    assert dict(zip(sides.edges, sides.counts, strict=False))[720] == 1


def test_the_report_is_plain_json(index: pa.Table) -> None:
    report = dataset_stats(index, CONFIG).to_dict()
    assert json.loads(json.dumps(report)) == report


def test_an_empty_index_has_an_empty_report(index: pa.Table) -> None:
    stats = dataset_stats(index.slice(0, 0), CONFIG)
    assert (stats.samples, stats.tokens, stats.buckets, stats.duration_s.counts) == (0, 0, [], [])
