"""Steps with a barrier in every slot: even slots, whole steps, and a fair share of everything for each."""

import numpy as np
import pytest

from loader.cost import PowerCost
from loader.policy import Division, Policy, Regime
from loader.simulate import Simulated, planned_steps, simulate
from loader.slots import slotted
from loader.workloads import WORKLOADS


@pytest.mark.parametrize(("ranks", "slots", "steps"), [(1, 1, 1), (4, 3, 1), (8, 4, 4), (16, 2, 3)])
@pytest.mark.parametrize("image_share", [0.0, 0.1, 1.0])
def test_every_rank_has_one_microbatch_in_every_slot(
    ranks: int, slots: int, steps: int, image_share: float
) -> None:
    for seed in range(5):
        generator = np.random.default_rng(seed)
        count = ranks * slots * steps
        costs = generator.lognormal(0, 1, count)
        images = generator.random(count) < image_share
        step, rank, slot = slotted(costs, generator.integers(1, 90, count), images, ranks, steps)
        placed = set(zip(step.tolist(), slot.tolist(), rank.tolist(), strict=True))
        assert placed == {(a, b, c) for a in range(steps) for b in range(slots) for c in range(ranks)}


def test_every_step_has_its_share_of_the_images() -> None:
    generator = np.random.default_rng(0)
    images = generator.random(512) < 0.05
    costs = np.where(images, 0.3, generator.uniform(0.5, 3, 512))
    step, _, _ = slotted(costs, np.where(images, 60, 4), images, 32, 4)
    found = np.bincount(step[images], minlength=4)
    assert found.max() - found.min() <= 1


def planned(policy: Policy, ranks: int, regime: Regime = "slot", lookahead: int = 4) -> Simulated:
    workload = WORKLOADS["koala-wide"]
    sizes = workload.batch_sizes(workload.budgets)
    steps = planned_steps(
        lambda step: workload.draw(sizes, 0, step, ranks * 4),
        Division(ranks, 4, policy, regime, lookahead),
        PowerCost(),
        40,
    )
    return simulate(steps)


@pytest.mark.parametrize("ranks", [16, 128])
def test_a_barrier_in_every_slot_costs_little_and_keeps_the_composition(ranks: int) -> None:
    plain, balanced = (planned(policy, ranks).metrics for policy in ("dual_constraint", "balanced"))
    assert balanced.idle < 0.08 < 0.3 < plain.idle
    assert balanced.image_share_std <= 1.2 * plain.image_share_std
    assert balanced.samples_std <= 1.2 * plain.samples_std


def test_looking_ahead_pays() -> None:
    assert (
        planned("balanced", 64, lookahead=4).metrics.idle
        < 0.6 * planned("balanced", 64, lookahead=1).metrics.idle
    )
