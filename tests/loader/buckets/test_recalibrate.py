"""The closed loop against a simulated cluster whose true cost drifts."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, MeasuredCost, PowerCost, seconds
from reelweave.loader.buckets.cost_fit import Timings
from reelweave.loader.buckets.recalibrate import RecalibrateConfig, recalibrate
from reelweave.loader.plan.policy import StepLayout, place
from reelweave.loader.simulation.plan_metrics import idle
from reelweave.loader.simulation.workloads import WORKLOADS
from tests.thorough import beyond

CONFIG = RecalibrateConfig()
WORKLOAD = WORKLOADS["koala-wide"]
RANKS = 32
START = LinearQuadraticCost(fixed_s=0.05, token_s=1e-5, square_s=3e-10)
SLOWER = LinearQuadraticCost(fixed_s=0.08, token_s=1.2e-5, square_s=1.2e-9)


class Cluster:
    """Runs steps that were planned with one cost and take what another says, with noise and stragglers.

    Odd ranks take so many times as long as the others for everything.
    """

    def __init__(
        self, noise: float = 0.02, stragglers: float = 0.02, odd: Mapping[int, float] = MappingProxyType({})
    ) -> None:
        self.noise, self.stragglers = noise, stragglers
        self.speed = np.ones(RANKS)
        self.speed[list(odd)] = list(odd.values())
        self.generator = np.random.default_rng(0)
        self.step = 0

    def run(self, planned: Cost, true: Cost, steps: int = 10) -> tuple[Timings, float]:
        """Timings of all microbatches, and the mean idle share."""
        sizes = WORKLOAD.batch_sizes(Budgets(memory_tokens=144_000, cost=planned, target_step_s=4.0))
        batch, length, step_s, rank, waited = [], [], [], [], []
        for _ in range(steps):
            drawn = WORKLOAD.draw(sizes, 0, self.step, RANKS * 4)
            costs = seconds(planned, drawn.batch, drawn.length)
            [(_, placement)] = place(StepLayout(RANKS, 4), costs, drawn.batch, drawn.images > 0)
            taken = seconds(true, drawn.batch, drawn.length) * self.speed[placement.rank]
            waited.append(idle(taken, placement))
            slow = self.generator.random(len(taken)) < self.stragglers
            taken = taken * (1 + self.noise * self.generator.normal(size=len(taken))) * np.where(slow, 3, 1)
            batch.append(drawn.batch)
            length.append(drawn.length)
            step_s.append(taken)
            rank.append(placement.rank)
            self.step += 1
        timings = Timings(*map(np.concatenate, (batch, length, step_s, rank)))
        return timings, float(np.mean(waited))


def test_a_cost_that_drifts_is_followed_and_ranks_wait_no_longer() -> None:
    cluster = Cluster()
    timings, at_first = cluster.run(START, START)
    assert not recalibrate(START, timings, CONFIG).changed
    timings, drifted = cluster.run(START, SLOWER)
    found = recalibrate(START, timings, CONFIG)
    assert found.changed
    assert not found.odd_ranks
    _, mended = cluster.run(found.cost, SLOWER)
    assert at_first < 0.01
    assert drifted > 0.05
    assert mended < 0.01
    planned, true = (seconds(cost, timings.batch, timings.length) for cost in (found.cost, SLOWER))
    np.testing.assert_allclose(planned, true, rtol=0.03)


@pytest.mark.parametrize("noise", [0.02, 0.05])
def test_buckets_that_no_formula_fits_are_planned_by_measured_factors(noise: float) -> None:
    lengths = tuple(np.geomspace(1000, 60_000, 40).astype(int).tolist())
    factors = tuple(np.exp(0.05 * np.random.default_rng(1).normal(size=40)).tolist())
    uneven = MeasuredCost(base=SLOWER, lengths=lengths, factors=factors)
    cluster = Cluster(noise)
    timings, before = cluster.run(SLOWER, uneven, steps=20)
    found = recalibrate(SLOWER, timings, CONFIG)
    assert found.changed
    assert "factors for" in found.reason
    timings, after = cluster.run(found.cost, uneven, steps=20)
    assert after < 0.3 * before
    # A base that is replaced later brings no old factors with it.
    assert not isinstance(found.cost.base, MeasuredCost)
    assert not recalibrate(found.cost, timings, CONFIG).changed


def test_a_wrong_first_guess_is_mended_at_the_first_set_point() -> None:
    cluster = Cluster()
    timings, before = cluster.run(PowerCost(scale_s=3e-9), SLOWER)
    found = recalibrate(PowerCost(scale_s=3e-9), timings, CONFIG)
    assert found.changed
    assert cluster.run(found.cost, SLOWER)[1] < 0.2 * before


@pytest.mark.parametrize(("noise", "stragglers"), beyond(1, [(0.10, 0.02), (0.02, 0.0), (0.02, 0.10)]))
def test_noise_and_stragglers_change_nothing(noise: float, stragglers: float) -> None:
    cluster = Cluster(noise, stragglers)
    for _ in range(4):
        timings, _ = cluster.run(START, START, steps=8)
        found = recalibrate(START, timings, CONFIG)
        assert not found.changed
        assert not found.odd_ranks


def test_stragglers_do_not_make_the_cost_dearer() -> None:
    timings, _ = Cluster(noise=0.02, stragglers=0.15).run(START, SLOWER)
    found = recalibrate(START, timings, CONFIG)
    assert found.changed
    assert float(seconds(found.cost, 2, 20_000)) == pytest.approx(float(seconds(SLOWER, 2, 20_000)), rel=0.03)
    assert "left out" in found.reason


def test_too_little_to_go_by_changes_nothing_and_says_so() -> None:
    timings, _ = Cluster().run(START, SLOWER, steps=1)
    few = timings.where(np.arange(50))
    assert recalibrate(START, few, CONFIG).reason == (
        "50 of 100 microbatches measured since the last set point: more steps from one to the next measure enough"
    )
    alike = Timings(np.full(200, 2), np.full(200, 9000), np.full(200, 1.0))
    assert "sequence lengths were measured" in recalibrate(START, alike, CONFIG).reason


def test_every_rank_decides_the_same() -> None:
    timings, _ = Cluster().run(START, SLOWER)
    assert recalibrate(START, timings, CONFIG) == recalibrate(START, timings, CONFIG)


# One machine that is throttled; half of a cluster, whose other half is the measure.
@pytest.mark.parametrize("slow", [(3,), range(16)], ids=["one", "half"])
def test_ranks_that_are_slow_at_everything_are_named_and_the_cost_is_kept(slow) -> None:
    timings, waited = Cluster(odd=dict.fromkeys(slow, 1.3)).run(START, START)
    found = recalibrate(START, timings, CONFIG)
    assert waited > 0.1
    assert not found.changed
    assert sorted(found.odd_ranks) == list(slow)
    assert list(found.odd_ranks.values()) == pytest.approx([1.3] * len(slow), rel=0.03)
    assert [f"rank {rank} takes 1." in found.reason for rank in slow].count(True) == min(len(slow), 8)
    assert ("8 more ranks are odd" in found.reason) == (len(slow) == 16)
    assert found.error < CONFIG.keep_error


def test_without_ranks_half_a_slow_cluster_makes_the_cost_dearer() -> None:
    """What the test above would not notice if ranks were not looked at."""
    timings, _ = Cluster(odd=dict.fromkeys(range(16), 1.3)).run(START, START)
    assert recalibrate(START, replace(timings, rank=None), CONFIG).error > CONFIG.keep_error


def test_a_wrong_cost_is_mended_beside_slow_ranks() -> None:
    cluster = Cluster(odd={1: 2.0, 5: 1.4, 9: 0.7})
    timings, _ = cluster.run(START, SLOWER)
    found = recalibrate(START, timings, CONFIG)
    assert found.changed
    assert found.odd_ranks == pytest.approx({1: 2.0, 5: 1.4, 9: 0.7}, rel=0.03)
    planned, true = (seconds(cost, timings.batch, timings.length) for cost in (found.cost, SLOWER))
    np.testing.assert_allclose(planned, true, rtol=0.03)
