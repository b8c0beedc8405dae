"""Orders that are computed where they are asked for, alone and in a stream."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.plan.epoch_order import group_draws
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout
from reelweave.loader.plan.shuffle import Permuted, Shuffle
from reelweave.loader.read.fetch import ByteRange, coalesce_ranges
from reelweave.pipelines.cli import main
from tests.loader.plan.test_plan import assignment
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import BUCKETS, SAMPLES, config

PERMUTED = Shuffle(order="permuted")


def single(count: int, run: int = 1, seed: int = 3, number: int = 0) -> Permuted:
    return Permuted(seed, number, 1, np.array([0, count]), run=run)


@pytest.mark.parametrize("run", [1, 2, 3, 7, 64])
def test_every_number_comes_once_whatever_the_count(run: int) -> None:
    for count in (*range(30), 1000, 99_991):
        assert np.array_equal(np.sort(single(count, run)[:]), np.arange(count)), count


def test_parts_of_it_are_those_of_the_whole() -> None:
    order = Permuted(3, 0, 1, np.array([0, 5, 5, 105]), np.arange(1000, 1105), 4, fillers=3, last=2)
    whole = order[:]
    assert len(whole) == len(order) == 108
    assert sorted(whole[:5]) == list(range(1000, 1005))
    assert whole[105:].tolist() == [whole[103], whole[104], whole[103]]
    places = np.random.default_rng(0).permutation(108)
    assert np.array_equal(order[places], whole[places])
    assert np.array_equal(order[17:90], whole[17:90])


@pytest.mark.parametrize("count", [4, 5, 6])
def test_all_orders_of_a_few_come_equally_often(count: int) -> None:
    groups = 20_000
    starts = np.arange(0, groups * count + 1, count)
    orders = (Permuted(7, 0, 1, starts)[:] - np.repeat(starts[:-1], count)).reshape(groups, count)
    seen = Counter(map(tuple, orders.tolist()))
    number, expected = math.factorial(count), groups / math.factorial(count)
    chi_square = sum((seen[order] - expected) ** 2 / expected for order in seen)
    chi_square += (number - len(seen)) * expected
    assert abs(chi_square - (number - 1)) < 4 * math.sqrt(2 * (number - 1))


def test_neighbours_of_a_large_order_lie_anywhere() -> None:
    count, bins = 10**8, 100
    places = np.arange(0, 50_000)
    for number in range(3):
        found = single(count, number=number)[places]
        for values in (found, np.diff(found) % count, (found - places) % count):
            expected = len(values) / bins
            seen = np.bincount(values * bins // count, minlength=bins)
            assert ((seen - expected) ** 2 / expected).sum() < bins + 4 * math.sqrt(2 * bins)


def test_runs_stay_together_and_are_cut_elsewhere_in_every_epoch() -> None:
    cuts = set()
    for epoch in range(5):
        order = single(1003, run=10, number=epoch)[:]
        begins = np.flatnonzero(np.diff(order) % 1003 != 1) + 1
        assert np.bincount(np.diff(begins))[10] >= 90
        cuts.add(int(order[begins[5]] % 10))
    assert len(cuts) > 1


def gets_per_sample(run: int, samples: int = 4000, per_step: int = 8) -> float:
    """Requests of microbatches of 8 over samples that lie side by side in shards of 500, in no order of their rows."""
    rng = np.random.default_rng(0)
    at = rng.permutation(samples)  # row -> place on disk
    near: IndexArray = np.argsort(np.argsort(at))
    parts = assignment([0] * samples, (8,))
    plan = plan_epoch(
        parts,
        1,
        0,
        StepLayout(per_step),
        shuffle=Shuffle(order="permuted", run=run),
        near_N=near if run > 1 else None,
    )
    requests = read = 0
    for step in plan:
        for micro in step.microbatches:
            places = [ByteRange(int(at[row] // 500), int(at[row] % 500) * 1000, 1000) for row in micro.rows]
            requests += len(coalesce_ranges(places))
            read += len(places)
    assert read == samples
    return requests / read


def test_runs_save_requests() -> None:
    single_samples, fours = gets_per_sample(1), gets_per_sample(4)
    assert single_samples > 0.97
    assert fours < 0.4


def test_a_plan_of_known_groups_is_the_same_and_holds_nothing_of_its_own() -> None:
    parts = assignment([0] * 50 + [-1] * 3 + [1] * 30, (4, 3))
    plan = plan_epoch(parts, 5, 2, StepLayout(4), shuffle=PERMUTED)
    groups = group_draws(parts, plan.draws)
    again = plan_epoch(parts, 5, 2, StepLayout(4), shuffle=PERMUTED, groups=groups)
    assert isinstance(again.order, Permuted)
    assert again.order.members is groups.numbers
    rows = [[micro.rows.tolist() for micro in step.microbatches] for step in plan]
    assert rows == [[micro.rows.tolist() for micro in step.microbatches] for step in again]
    seen = [row for step in rows for micro in step for row in micro]
    assert sorted(seen) == [*range(50), *range(53, 83)]
    other = plan_epoch(parts, 5, 3, StepLayout(4), shuffle=PERMUTED, groups=groups)
    assert rows != [[micro.rows.tolist() for micro in step.microbatches] for step in other]


@pytest.mark.parametrize("before", [Shuffle(), Shuffle(order="permuted", run=3)])
def test_a_change_of_the_shuffle_or_the_ranks_in_mid_epoch_loses_and_repeats_nothing(
    dataset: Dataset, before: Shuffle
) -> None:
    first, state = run_steps(dataset, config(epochs=1, decode=False, shuffle=before), 2, None, 1)
    second, state = run_steps(dataset, config(epochs=1, decode=False, shuffle=PERMUTED), 1, state, 2)
    third, _ = run_steps(dataset, config(epochs=1, decode=False, shuffle=PERMUTED), 2, state, 100)
    seen = Counter(
        key for step in first + second + third for micro in step for key in micro.keys if micro.weight
    )
    assert seen == Counter({f"key{number:02}": 1 for number in range(SAMPLES)})


def test_a_state_goes_on_with_the_very_same_steps(dataset: Dataset) -> None:
    settings = config(decode=False, shuffle=Shuffle(order="permuted", run=2))
    whole, _ = run_steps(dataset, settings, 2, None, 100)
    begun, state = run_steps(dataset, settings, 2, None, 2)
    rest, _ = run_steps(dataset, settings, 2, state, 100)
    keys = [[micro.keys for micro in step] for step in whole if step]
    assert keys == [[micro.keys for micro in step] for step in begun + rest if step]
    assert len(keys) > 5


def test_the_report_of_a_dataset_says_what_runs_save_and_cost(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = BUCKETS.model_dump(mode="json", exclude_none=True)
    buckets = [f"buckets.{key}={json.dumps(value)}" for key, value in values.items()]
    changes = [word for change in buckets for word in ("--set", change)]
    asked = ["plan", str(folder), "--world-size", "1", "--microbatches", "1", "--steps", "2", *changes]
    assert main([*asked, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["reading_by_run"]
    assert list(said) == ["1", "4", "16"]
    assert all(0 < one["requests_per_sample"] <= 1 and 0 <= one["waste"] <= 0.05 for one in said.values())
    sizes = open_dataset(folder).plan_index.size
    assert min(sizes) <= said["1"]["bytes_per_step"] <= sizes.sum()
    assert main(asked) == 0
    assert "reading, all ranks together" in capsys.readouterr().out
