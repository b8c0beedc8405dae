"""Step plans: every sample once, equal work counts, the same plan everywhere and for ever."""

import hashlib
import itertools
import time
import tracemalloc

import numpy as np
import pytest

from reelweave.loader.buckets.assignment import Assignment, BatchSize, Bucket, Budgets
from reelweave.loader.buckets.cost import PowerCost, seconds
from reelweave.loader.buckets.unassigned import Unassigned
from reelweave.loader.dataset.epoch_draws import Draws
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.epoch_plan import DoneSegment, EpochPlan, plan_epoch
from reelweave.loader.plan.policy import Policy, Regime, StepLayout


def assignment(bucket_of: list[int], batches: tuple[int, ...]) -> Assignment:
    return Assignment(
        buckets=tuple(Bucket(number + 1, 16, 16) for number in range(len(batches))),
        lengths=tuple(range(1, len(batches) + 1)),
        batch_sizes=tuple(BatchSize(batch, "memory") for batch in batches),
        budgets=Budgets(memory_tokens=40),
        cost=PowerCost(),
        text_tokens=np.arange(len(bucket_of)) % 2,
        max_text_tokens=1,
        bucket_of=np.array(bucket_of, dtype=np.int64),
        unassigned=Unassigned(np.zeros(0, np.int64), np.zeros(0, np.int32), ()),
    )


def random_assignment(seed: int, samples: int, buckets: int, most: int) -> Assignment:
    generator = np.random.default_rng(seed)
    return assignment(
        generator.integers(-1, buckets, samples).tolist(),
        tuple(generator.integers(1, most + 1, buckets).tolist()),
    )


def rows(plan: EpochPlan) -> list[list[list[int]]]:
    return [[micro.rows.tolist() for micro in step.microbatches] for step in plan]


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("seed", range(6))
def test_every_assigned_sample_counts_once_and_every_rank_works_in_every_step(
    seed: int, world_size: int
) -> None:
    parts = random_assignment(seed, samples=60 + 37 * seed, buckets=1 + seed, most=1 + seed)
    plan = plan_epoch(parts, seed, 0, StepLayout(world_size))
    counted = []
    for step in plan:
        assert len(step.microbatches) == world_size
        assert sum(micro.weight for micro in step.microbatches) == pytest.approx(1)
        assert step.samples == sum(len(micro.rows) for micro in step.microbatches if micro.weight)
        for micro in step.microbatches:
            assert 1 <= len(micro.rows) <= parts.batch_sizes[micro.bucket].batch
            assert (parts.bucket_of[micro.rows] == micro.bucket).all()
            assert micro.weight in (0, len(micro.rows) / step.samples)
            counted += micro.rows.tolist() if micro.weight else []
    assert sorted(counted) == np.flatnonzero(parts.bucket_of >= 0).tolist()
    assert len(list(plan)) == len(plan)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (2, 2), (2, 4), (4, 3), (8, 2)])
@pytest.mark.parametrize("policy", ["balanced", "dual_constraint"])
def test_with_several_microbatches_every_sample_still_counts_once(
    ranks: int, microbatches: int, policy: Policy
) -> None:
    parts = random_assignment(3, samples=300, buckets=5, most=6)
    plan = plan_epoch(parts, 0, 0, StepLayout(ranks, microbatches, policy))
    counted = []
    for number, step in enumerate(plan):
        assert len(step.microbatches) == ranks * microbatches
        assert sum(micro.weight for micro in step.microbatches) == pytest.approx(1)
        parts_of_ranks = [plan.step(number, rank) for rank in range(ranks)]
        for rank, own in enumerate(parts_of_ranks):
            assert own.samples == step.samples
            assert [(micro.rank, micro.slot) for micro in own.microbatches] == [
                (rank, slot) for slot in range(max(1, len(own.microbatches)))
            ]
        assert [micro.rows.tolist() for own in parts_of_ranks for micro in own.microbatches] == [
            micro.rows.tolist() for micro in step.microbatches
        ]
        counted += [row for micro in step.microbatches if micro.weight for row in micro.rows.tolist()]
    assert sorted(counted) == np.flatnonzero(parts.bucket_of >= 0).tolist()


def test_who_runs_what_does_not_decide_what_a_step_holds() -> None:
    parts = random_assignment(5, samples=400, buckets=6, most=8)
    layouts = [StepLayout(1, 8), StepLayout(2, 4), StepLayout(8, 1), StepLayout(2, 4, "dual_constraint")]
    steps = [
        [sorted(row for micro in step.microbatches for row in micro.rows.tolist()) for step in plan]
        for plan in (plan_epoch(parts, 0, 0, layout) for layout in layouts)
    ]
    assert steps[0] == steps[1] == steps[2] == steps[3]


def test_balanced_ranks_wait_less_than_ranks_in_order() -> None:
    parts = random_assignment(7, samples=3000, buckets=8, most=8)
    cost = PowerCost()

    def idle(policy: Policy) -> float:
        found = []
        for step in plan_epoch(parts, 0, 0, StepLayout(8, 6, policy)):
            work = np.zeros(8)
            for micro in step.microbatches:
                work[micro.rank] += seconds(cost, len(micro.rows), parts.lengths[micro.bucket])
            found.append(1 - work.mean() / work.max())
        return float(np.mean(found))

    assert idle("balanced") < 0.01 < 0.1 < idle("dual_constraint")


def test_microbatches_are_full_but_the_last_of_each_bucket() -> None:
    plan = plan_epoch(assignment([0] * 10 + [1] * 9, (4, 3)), seed=1, epoch=0, layout=StepLayout(1))
    sizes = sorted((step.microbatches[0].bucket, len(step.microbatches[0].rows)) for step in plan)
    assert sizes == [(0, 2), (0, 4), (0, 4), (1, 3), (1, 3), (1, 3)]


def test_the_largest_microbatches_are_halved_to_even_out_the_ranks() -> None:
    plan = plan_epoch(assignment([0] * 8 + [1] * 2, (8, 1)), seed=1, epoch=0, layout=StepLayout(5))
    [step] = plan
    assert sorted(len(micro.rows) for micro in step.microbatches) == [1, 1, 2, 2, 4]
    assert all(micro.weight for micro in step.microbatches)


def test_with_nothing_to_halve_the_last_step_repeats_samples_at_weight_0() -> None:
    plan = plan_epoch(assignment([0] * 7, (1,)), seed=1, epoch=0, layout=StepLayout(5))
    assert len(plan) == 2
    last = plan[1].microbatches
    assert [micro.weight for micro in last] == [0.5, 0.5, 0, 0, 0]
    assert {int(micro.rows[0]) for micro in last[2:]} == {int(micro.rows[0]) for micro in last[:2]}
    assert plan[1].samples == 2


def test_seed_and_epoch_each_change_the_plan_and_nothing_else_does() -> None:
    parts = random_assignment(0, samples=200, buckets=4, most=5)
    plans = {key: rows(plan_epoch(parts, *key, StepLayout(2))) for key in itertools.product((0, 1), (0, 1))}
    again = {key: rows(plan_epoch(parts, *key, StepLayout(2))) for key in plans}
    assert plans == again
    assert all(one != other for one, other in itertools.combinations(plans.values(), 2))


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_plan_never_changes_between_machines_and_versions(world_size: int) -> None:
    bucket_of = [(7 * number) % 5 - 1 for number in range(1000)]
    plan = plan_epoch(assignment(bucket_of, (2, 3, 1, 5)), 2**64 - 1, 3, StepLayout(world_size))
    digest = hashlib.sha256(str(rows(plan)).encode()).hexdigest()[:16]
    # Made by numpy 2.4.6; a change breaks every saved state, so it needs a new STATE_VERSION.
    assert digest == {1: "57afa4774a1fbc9e", 4: "ea86b88cd8d2ea4f"}[world_size]


def test_order_is_mixed_over_the_whole_epoch() -> None:
    plan = plan_epoch(assignment([0] * 2000 + [1] * 2000, (4, 4)), seed=0, epoch=0, layout=StepLayout(1))
    order = np.concatenate([step.microbatches[0].rows for step in plan])
    assert abs(np.corrcoef(order, np.arange(4000))[0, 1]) < 0.1
    buckets = [step.microbatches[0].bucket for step in plan]
    assert 400 < sum(one != other for one, other in itertools.pairwise(buckets)) < 600


@pytest.mark.parametrize("bucket_of", [[], [-1, -1], [0, -1, 0]])
def test_fewer_samples_than_ranks_are_refused(bucket_of: list[int]) -> None:
    with pytest.raises(UsageError, match="cannot fill the 3 microbatches of a step"):
        plan_epoch(assignment(bucket_of, (2,)), 0, 0, StepLayout(3))


def counts_at_places(parts: Assignment, layout: StepLayout, plans: int) -> np.ndarray:
    """How often each sample was trained in each microbatch of an epoch, over many seeds."""
    places = plan_epoch(parts, 0, 0, layout).turns.size
    counts = np.zeros((len(parts.bucket_of), places))
    for plan in (plan_epoch(parts, seed, 0, layout) for seed in range(plans)):
        for place in range(places):
            counts[plan.draws_of(np.array([place])), place] += 1
    return counts


def excess(counts: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square in standard deviations above its mean."""
    cells = (counts - expected)[expected > 0] ** 2 / expected[expected > 0]
    return float((cells.sum() - cells.size) / np.sqrt(2 * cells.size))


def test_every_sample_is_equally_likely_at_every_place() -> None:
    # Two of the ten microbatches are halved.
    counts = counts_at_places(assignment([0, 1, 0, 0, 1, 0, 1] * 2, (1, 4)), StepLayout(1, 3), 1000)
    assert counts.shape == (14, 12)
    assert excess(counts, np.full(counts.shape, 1000 / 12)) < 3


def test_in_runs_of_a_bucket_its_samples_are_equally_likely_at_every_place() -> None:
    parts = assignment([0, 1, 0, 0, 1, 0, 1] * 2, (1, 2))
    counts = counts_at_places(parts, StepLayout(3, 1, "same_bucket"), 1000)
    for bucket in (0, 1):
        own = counts[parts.bucket_of == bucket]
        assert excess(own, np.broadcast_to(own.mean(axis=0), own.shape)) < 3


def test_two_million_samples_take_little_time_and_memory() -> None:
    parts = random_assignment(1, samples=2_000_000, buckets=60, most=6)
    tracemalloc.start()
    began = time.process_time()
    plan = plan_epoch(parts, 0, 0, StepLayout(1024))
    assert time.process_time() - began < 20
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(plan) > 200
    assert kept < 13 * 2_000_000
    assert peak < 30 * 2_000_000


def test_what_is_over_counts_once_in_an_epoch_of_many_microbatches() -> None:
    parts, layout = random_assignment(2, samples=300_000, buckets=9, most=3), StepLayout(512)
    plan = plan_epoch(parts, 0, 0, layout)
    steps = len(plan) * 2 // 3
    over = np.concatenate(list(plan.drawn_before(steps)))
    rest = plan_epoch(parts, 0, 0, layout, [DoneSegment(parts, layout, steps)])
    assert len(over) == sum(plan.step(step, 0).samples for step in range(steps))
    left = np.concatenate(list(rest.drawn_before(len(rest) - 1)))
    last = [row for micro in rest[len(rest) - 1].microbatches if micro.weight for row in micro.rows.tolist()]
    assert sorted([*over.tolist(), *left.tolist(), *last]) == np.flatnonzero(parts.bucket_of >= 0).tolist()


@pytest.mark.parametrize("layout", [StepLayout(1), StepLayout(4, 3), StepLayout(3, 5, "dual_constraint")])
def test_the_weighted_gradients_of_a_step_are_that_of_the_mean_over_its_samples(layout: StepLayout) -> None:
    parts = random_assignment(11, samples=400, buckets=6, most=7)
    gradients = np.random.default_rng(0).normal(size=(400, 16))  # of a linear model, one per sample
    epoch, samples = np.zeros(16), 0
    for step in plan_epoch(parts, 0, 0, layout):
        summed = sum(micro.weight * gradients[micro.rows].mean(axis=0) for micro in step.microbatches)
        rows = np.concatenate([micro.rows for micro in step.microbatches if micro.weight])
        np.testing.assert_allclose(summed, gradients[rows].mean(axis=0), atol=1e-12)
        epoch, samples = epoch + step.samples * summed, samples + step.samples
    # Over an epoch nothing is favoured: steps weighed by their samples give the mean over all of them.
    np.testing.assert_allclose(epoch / samples, gradients[parts.bucket_of >= 0].mean(axis=0), atol=1e-12)


@pytest.mark.parametrize(("ranks", "microbatches", "lookahead"), [(4, 2, 1), (4, 3, 4), (3, 5, 7)])
@pytest.mark.parametrize("policy", ["balanced", "same_bucket", "equal_token"])
def test_with_a_barrier_in_every_slot_all_ranks_have_as_many(
    ranks: int, microbatches: int, lookahead: int, policy: Policy
) -> None:
    parts = random_assignment(3, samples=500, buckets=5, most=6)
    counted = []
    for step in plan_epoch(parts, 0, 0, StepLayout(ranks, microbatches, policy, "slot", lookahead)):
        assert [(micro.rank, micro.slot) for micro in step.microbatches] == list(
            itertools.product(range(ranks), range(microbatches))
        )
        assert sum(micro.weight for micro in step.microbatches) == pytest.approx(1)
        counted += [row for micro in step.microbatches if micro.weight for row in micro.rows.tolist()]
    assert sorted(counted) == np.flatnonzero(parts.bucket_of >= 0).tolist()


def test_looking_ahead_makes_slots_even() -> None:
    parts = random_assignment(7, samples=4000, buckets=8, most=8)

    def idle(lookahead: int, policy: Policy = "balanced") -> float:
        waited = []
        plan = plan_epoch(parts, 0, 0, StepLayout(8, 4, policy, "slot", lookahead))
        for step in plan:
            cost = np.zeros((8, 4))
            for micro in step.microbatches:
                cost[micro.rank, micro.slot] = len(micro.rows) * parts.lengths[micro.bucket] ** 2
            waited.append(1 - cost.mean(axis=0).sum() / cost.max(axis=0).sum())
        return float(np.mean(waited))

    assert idle(4) < 0.6 * idle(1) < 0.6 * idle(1, "dual_constraint")


def test_same_bucket_gives_all_ranks_one_bucket_in_a_slot() -> None:
    parts = random_assignment(3, samples=500, buckets=5, most=6)
    plan = plan_epoch(parts, 0, 0, StepLayout(4, 3, "same_bucket", "slot"))
    one = [
        len({micro.bucket for micro in step.microbatches if micro.slot == slot}) == 1
        for step in plan
        for slot in range(3)
    ]
    assert all(one[: len(one) * 3 // 4])
    assert len({micro.bucket for micro in plan[0].microbatches}) > 1


def test_what_is_drawn_several_times_is_trained_several_times() -> None:
    parts = random_assignment(3, samples=60, buckets=3, most=4)
    rows = np.random.default_rng(0).integers(0, 60, 200)
    draws = Draws(rows, np.arange(200), np.zeros(200, np.int64))
    drawn = []
    for step in plan_epoch(parts, 0, 0, StepLayout(2), draws=draws):
        for micro in step.microbatches:
            drawn += (
                list(zip(micro.rows.tolist(), micro.passes.tolist(), strict=True)) if micro.weight else []
            )
    wanted = [(row, number) for number, row in enumerate(rows.tolist()) if parts.bucket_of[row] >= 0]
    assert sorted(drawn) == sorted(wanted)


def test_after_a_change_of_buckets_the_rest_of_the_epoch_is_cut_anew() -> None:
    before, after = assignment([0, 1] * 60, (4, 2)), assignment([0, -1] * 60, (3, 1))
    first = plan_epoch(before, 0, 0, StepLayout(2))
    done = [row for step in itertools.islice(first, 5) for micro in step.microbatches for row in micro.rows]
    rest = plan_epoch(after, 0, 0, StepLayout(3), [DoneSegment(before, StepLayout(2), 5)])
    found = [row for step in rest for micro in step.microbatches if micro.weight for row in micro.rows]
    assert sorted(found) == sorted(set(range(0, 120, 2)) - set(done))
    assert max(len(micro.rows) for step in rest for micro in step.microbatches) == 3


def test_interrupted_forty_times_at_changing_sizes_every_sample_counts_once() -> None:
    generator = np.random.default_rng(0)
    interruptions = 0
    for seed in range(5):
        parts = random_assignment(seed, samples=600, buckets=5, most=4)
        done: list[DoneSegment] = []
        counted: list[int] = []
        while True:
            regime: Regime = "slot" if generator.integers(2) else "step"
            ranks, microbatches, lookahead = generator.integers(1, (9, 4, 6)).tolist()
            layout = StepLayout(ranks, microbatches, "balanced", regime, lookahead)
            plan = plan_epoch(parts, seed, 1, layout, done)
            steps = int(generator.integers(1, max(2, len(plan) // 3)))
            for step in itertools.islice(plan, steps):
                counted += [row for micro in step.microbatches if micro.weight for row in micro.rows.tolist()]
            if steps >= len(plan):
                break
            done.append(DoneSegment(parts, layout, steps))
            interruptions += 1
        assert sorted(counted) == np.flatnonzero(parts.bucket_of >= 0).tolist()
    assert interruptions > 40


def test_a_sample_whose_filler_ran_before_it_is_not_over() -> None:
    parts, layout = assignment([1, 2, 3, 4] * 4 + [1], (1,) * 5), StepLayout(2, 2, "balanced", "slot", 4)
    early = 0
    for seed, steps in itertools.product(range(8), range(1, 5)):
        plan = plan_epoch(parts, seed, 0, layout)
        rest = plan_epoch(parts, seed, 0, StepLayout(3, 1), [DoneSegment(parts, layout, steps)])
        both = (*itertools.islice(plan, steps), *rest)
        counted = [row for step in both for micro in step.microbatches if micro.weight for row in micro.rows]
        assert sorted(counted) == list(range(17))
        early += any(not micro.weight for micro in plan[len(plan) - 2].microbatches)
    assert early
