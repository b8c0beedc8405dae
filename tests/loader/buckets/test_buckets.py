"""Which bucket a sample gets, and how many samples make a microbatch."""

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from reelweave.loader.buckets.assignment import BatchSize, Bucket, BucketConfig, assign, batch_size
from reelweave.loader.buckets.cost import LinearQuadraticCost
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset.plan_index import PlanIndex
from tests.loader.samples import plan_index

SIZES = ((480, 832), (720, 1280), (832, 480), (640, 640))


def config(**changes: object) -> BucketConfig:
    return BucketConfig(
        **{
            "frames": (17, 49, 81),
            "sizes": SIZES,
            "compression": Compression(frames=8, height=16, width=16, causal=True),
            "max_text_tokens": 256,
            "memory_tokens": 144_000,
            **changes,
        }
    )


def index(*shapes: tuple[int, int, int]) -> PlanIndex:
    return plan_index(*np.array(shapes, np.int32).reshape(-1, 3).T)


def bucket_of(frames: int, height: int, width: int, **changes: object) -> Bucket | None:
    assignment = assign(index((frames, height, width)), config(**changes))
    place = assignment.bucket_of[0]
    return assignment.buckets[place] if place >= 0 else None


@pytest.mark.parametrize(
    ("length", "budgets", "expected"),
    [
        (1000, {"memory_tokens": 5999}, BatchSize(5, "memory")),
        (1000, {"memory_tokens": 6000}, BatchSize(6, "memory")),
        (1000, {"memory_tokens": 6000, "compute_budget": 3.9e6}, BatchSize(3, "compute")),
        (1000, {"memory_tokens": 6000, "compute_budget": 9e6}, BatchSize(6, "memory")),
        (1000, {"memory_tokens": 6000, "max_batch": 2}, BatchSize(2, "max_batch")),
        (1000, {"memory_tokens": 999}, BatchSize(1, "one")),
        (1000, {"memory_tokens": 6000, "compute_budget": 9e5}, BatchSize(1, "one")),
        (1000, {"memory_tokens": 1000, "compute_budget": 9e6}, BatchSize(1, "memory")),
    ],
)
def test_batch_size_is_the_dual_constraint(
    length: int, budgets: dict[str, float], expected: BatchSize
) -> None:
    assert batch_size(length, config(**budgets)) == expected


def test_a_fitted_cost_and_a_target_time_bound_b_as_well() -> None:
    cost = LinearQuadraticCost(fixed_s=0.5, token_s=1e-5, square_s=1e-9)
    timed = config(memory_tokens=10**6, cost=cost, target_step_s=2.0)
    assert batch_size(10_000, timed) == BatchSize(7, "compute")  # 1.5 s over 0.2 s
    assert batch_size(100_000, timed) == BatchSize(1, "one")
    assert batch_size(10_000, config(memory_tokens=10**6, cost=cost)) == BatchSize(100, "memory")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"target_step_s": 2.0}, "target_step_s needs a cost"),
        ({"cost": {"token_s": 1, "square_s": 0}, "compute_budget": 1.0}, "set target_step_s instead"),
    ],
)
def test_bounds_of_two_units_are_refused(values: dict, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config(**values)


@pytest.mark.parametrize("exponent", [1.0, 1.61, 2.0, 2.4])
def test_batch_size_keeps_both_budgets_and_wastes_less_than_a_sample(exponent: float) -> None:
    generator = np.random.default_rng(7)
    for length, memory, target in generator.integers(100, 100_000, (300, 3)).tolist():
        budget = float(target) ** exponent
        found = batch_size(length, config(memory_tokens=memory, compute_budget=budget, exponent=exponent))
        fits = [
            batch * length <= memory and batch * length**exponent <= budget * (1 + 1e-9)
            for batch in (found.batch, found.batch + 1)
        ]
        assert fits == ([False, False] if found.bound == "one" else [True, False])


@pytest.mark.parametrize("times", [1, 3, 7])
def test_a_budget_of_whole_samples_holds_them_however_the_power_rounds(times: int) -> None:
    for length in range(1000, 3000, 7):
        budget = times * length**1.7
        assert batch_size(length, config(compute_budget=budget, exponent=1.7)).batch == times


def test_every_sample_of_a_bucket_is_as_long_as_the_bucket_says() -> None:
    assignment = assign(index((17, 480, 832)), config())
    lengths = dict(zip(assignment.buckets, assignment.lengths, strict=True))
    assert lengths[Bucket(17, 480, 832)] == 256 + 3 * 30 * 52
    assert len(lengths) == 3 * len(SIZES)


@pytest.mark.parametrize(("frames", "expected"), [(17, 17), (48, 17), (49, 49), (80, 49), (5000, 81)])
def test_frames_are_cut_to_the_most_that_the_clip_has(frames: int, expected: int) -> None:
    assert bucket_of(frames, 720, 1280) == Bucket(expected, 720, 1280)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (1080, 1920, (720, 1280)),
        (1080, 1900, (720, 1280)),  # 480x832 is a hair nearer in aspect ratio, far in area
        (480, 854, (480, 832)),  # 720x1280 is a hair nearer in aspect ratio, and too large
        (600, 1066, (720, 1280)),  # enlarged 1.2 times
        (540, 960, (480, 832)),
        (1920, 1080, (832, 480)),
        (1000, 1000, (640, 640)),
        (1024, 1280, (640, 640)),
    ],
)
def test_size_is_nearest_in_aspect_ratio_then_in_area(
    height: int, width: int, expected: tuple[int, int]
) -> None:
    assert bucket_of(17, height, width) == Bucket(17, *expected)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((16, 720, 1280), "16 frames, the smallest bucket has 17"),
        ((17, 240, 320), "240x320 pixels"),
        ((17, 700, 3000), "cropping more than 50%"),
    ],
)
def test_a_sample_that_fits_nowhere_is_listed_with_its_reason(
    shape: tuple[int, int, int], words: str
) -> None:
    assignment = assign(index((17, 720, 1280), shape), config())
    assert assignment.bucket_of[1] == -1
    [(key, reason)] = assignment.unassigned.iterate_reasons(pa.chunked_array([["key0", "key1"]]))
    assert key == "key1"
    assert words in reason
    assert assignment.unassigned.counts() == {reason: 1}


def test_every_sample_has_a_bucket_within_the_limits_or_a_reason() -> None:
    generator = np.random.default_rng(3)
    shapes = np.stack(
        [generator.integers(least, most, 2000) for least, most in ((1, 200), *[(200, 2200)] * 2)], 1
    )
    limits = config(max_upscale=1.1, max_crop=0.3)
    assignment = assign(index(*shapes), limits)
    without = set(assignment.unassigned.rows.tolist())
    for row, ((frames, height, width), place) in enumerate(
        zip(shapes.tolist(), assignment.bucket_of, strict=True)
    ):
        assert (row in without) == (place < 0)
        if place >= 0:
            bucket = assignment.buckets[place]
            ratio = (bucket.width / bucket.height) / (width / height)
            assert bucket.frames <= frames
            assert max(bucket.height / height, bucket.width / width) <= 1.1
            assert 1 - min(ratio, 1 / ratio) <= 0.3 + 1e-9
    assert 0 < len(without) < 2000


def test_the_order_of_the_configured_shapes_does_not_matter() -> None:
    table = index((50, 720, 1280), (20, 832, 480), (90, 1000, 1000))
    one = assign(table, config())
    other = assign(table, config(frames=(81, 17, 49), sizes=SIZES[::-1]))
    assert one.buckets == other.buckets
    assert one.bucket_of.tolist() == other.bucket_of.tolist()


def test_an_empty_index_assigns_nothing() -> None:
    assignment = assign(index(), config())
    assert len(assignment.bucket_of) == len(assignment.unassigned) == 0
    assert assignment.unassigned.counts() == {}


def test_a_sample_has_the_same_bucket_wherever_it_stands_in_a_long_index() -> None:
    shapes = [(17, 480, 832), (50, 720, 1280), (3, 640, 640), (90, 240, 320), (90, 1000, 1000)]
    short = assign(index(*shapes), config())
    order = np.random.default_rng(0).integers(0, len(shapes), 2_500_000)
    long = assign(index(*np.array(shapes)[order]), config())
    assert np.array_equal(long.bucket_of, short.bucket_of[order])
    assert len(long.unassigned) == np.isin(order, [2, 3]).sum()
    assert long.unassigned.counts() == {
        "3 frames, the smallest bucket has 17": (order == 2).sum(),
        "240x320 pixels fill no size without enlarging more than 1.25 times or cropping more than 50%": (
            order == 3
        ).sum(),
    }


@pytest.mark.parametrize(
    "changes", [{"frames": (17, 17)}, {"sizes": ()}, {"memory_tokens": 0}, {"max_crop": 1.0}, {"frame": 17}]
)
def test_a_wrong_configuration_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        config(**changes)
