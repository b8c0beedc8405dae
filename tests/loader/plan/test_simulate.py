"""Plans on paper: how even the policies are, beside each other."""

import numpy as np
import pytest

from reelweave.loader.buckets.cost import LinearQuadraticCost, PowerCost, seconds
from reelweave.loader.plan.policy import POLICIES, Policy, StepLayout, budgets_of, place
from reelweave.loader.simulation.simulate import PlannedStep, SimulatedPlan, planned_steps, simulate
from reelweave.loader.simulation.workloads import WORKLOADS
from tests.thorough import beyond, thorough


def planned(name: str, policy: Policy, ranks: int, microbatches: int, steps: int) -> SimulatedPlan:
    workload = WORKLOADS[name]
    sizes = workload.batch_sizes(budgets_of(policy, workload.budgets))
    layout = StepLayout(ranks, microbatches, policy)
    return simulate(
        planned_steps(
            lambda step: workload.draw(sizes, 0, step, layout.per_step, layout.run),
            layout,
            PowerCost(),
            steps,
        )
    )


@pytest.mark.parametrize(
    ("ranks", "steps", "four", "eight"), beyond(1, [(128, 12, 0.015, 0.001), (16, 60, 0.01, 0.001)])
)
def test_a_wide_mixture_is_balanced(ranks: int, steps: int, four: float, eight: float) -> None:
    assert planned("koala-wide", "balanced", ranks, 4, steps).metrics.idle <= four
    assert planned("koala-wide", "balanced", ranks, 8, steps).metrics.idle <= eight


@thorough
def test_a_wide_mixture_is_balanced_on_a_thousand_ranks() -> None:
    assert planned("koala-wide", "balanced", 1024, 4, 2).metrics.idle <= 0.025
    assert planned("koala-wide", "balanced", 1024, 8, 1).metrics.idle <= 0.005


def test_the_papers_figures_come_out_on_a_mixture_like_the_papers() -> None:
    equal, dual = (
        planned("adaptiveload", policy, 16, 1, 300).metrics for policy in ("equal_token", "dual_constraint")
    )
    assert equal.compute_cv_s2 == pytest.approx(0.39, abs=0.02)
    assert dual.compute_cv_s2 == pytest.approx(0.18, abs=0.015)
    for ranks, steps in ((16, 60), (1024, 2)):
        assert planned("adaptiveload", "balanced", ranks, 4, steps).metrics.compute_cv <= 0.01


def test_without_planning_a_wide_mixture_idles() -> None:
    assert 0.53 < planned("koala-wide", "equal_token", 16, 1, 200).metrics.idle < 0.61
    assert 0.33 < planned("koala-wide", "dual_constraint", 16, 1, 200).metrics.idle < 0.38


@thorough
def test_one_bucket_for_all_is_even_and_makes_steps_of_one_kind() -> None:
    same, balanced = (
        planned("koala-wide", policy, 128, 4, 20).metrics for policy in ("same_bucket", "balanced")
    )
    assert same.idle < 0.02
    assert same.image_share_std > 3 * balanced.image_share_std


def test_balancing_changes_no_step_but_only_who_does_what() -> None:
    dual, balanced = (
        planned("koala-wide", policy, 64, 4, 20).metrics for policy in ("dual_constraint", "balanced")
    )
    for name in ("image_share_std", "samples_std", "padding"):
        assert getattr(dual, name) == getattr(balanced, name)


def test_errors_of_the_cost_come_back_as_idle_time() -> None:
    off = list(planned("koala-wide", "balanced", 64, 4, 20).idle_with_error.values())
    assert off == sorted(off)
    assert off[0] > 0.01


@pytest.mark.parametrize("policy", POLICIES)
def test_every_microbatch_has_a_rank_and_a_slot_of_its_own(policy: Policy) -> None:
    costs = np.random.default_rng(0).lognormal(0, 1, 64)
    [(_, placement)] = place(StepLayout(16, 4, policy), costs, np.ones(64, np.int64), np.zeros(64, np.bool_))
    assert len(set(zip(placement.rank.tolist(), placement.slot.tolist(), strict=True))) == 64
    for rank in range(16):
        slots = np.sort(placement.slot[placement.rank == rank])
        assert slots.tolist() == list(range(len(slots)))


def test_metrics_are_those_of_the_plan_that_is_written() -> None:
    workload = WORKLOADS["koala-wide"]
    sizes = workload.batch_sizes(workload.budgets)
    cost = LinearQuadraticCost(fixed_s=0.1, token_s=1e-5, square_s=1e-9)
    kept: list[PlannedStep] = []
    steps = planned_steps(lambda step: workload.draw(sizes, 0, step, 64), StepLayout(16, 4), cost, 3)
    metrics = simulate(steps, kept.append).metrics
    idle, token_cv = [], []
    for step in kept:
        table = step.table().to_pydict()
        batch, length = np.array(table["B"]), np.array(table["S"])
        np.testing.assert_allclose(table["cost"], seconds(cost, batch, length))
        work = np.bincount(table["rank"], weights=table["cost"])
        tokens = np.bincount(table["rank"], weights=batch * length)
        idle.append(1 - work.mean() / work.max())
        token_cv.append(1 - tokens.min() / tokens.max())
    assert metrics.idle == pytest.approx(np.mean(idle))
    assert metrics.token_cv == pytest.approx(np.mean(token_cv))
