"""Steps with a barrier in every slot: even slots, whole steps, a fair share for each, and nothing waits long."""

import numpy as np
import pytest

from reelweave.loader.buckets.cost import PowerCost
from reelweave.loader.plan.policy import Policy, Regime, StepLayout
from reelweave.loader.plan.slots import assign_slots
from reelweave.loader.simulation.simulate import SimulatedPlan, planned_steps, simulate
from reelweave.loader.simulation.workloads import WORKLOADS
from tests.thorough import beyond

CASES = [(1, 1, 1, 1), (4, 3, 1, 4), (8, 4, 4, 4), (16, 2, 3, 2), (4, 2, 40, 4), (3, 5, 21, 1), (2, 1, 30, 9)]


def stream(seed: int, count: int, image_share: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs, samples and images; the second half of the stream is dearer, and all images come in a row."""
    generator = np.random.default_rng(seed)
    costs = generator.lognormal(0, 1, count) * np.where(np.arange(count) < count // 2, 1, 3)
    return costs, generator.integers(1, 90, count), np.arange(count) < image_share * count


@pytest.mark.parametrize(("ranks", "slots", "steps", "lookahead"), CASES)
@pytest.mark.parametrize("image_share", [0.0, 0.1, 0.3, 0.9, 1.0])
def test_every_rank_has_one_microbatch_in_every_slot_and_none_moves_beyond_the_lookahead(
    ranks: int, slots: int, steps: int, lookahead: int, image_share: float
) -> None:
    for seed in range(5):
        count = ranks * slots * steps
        step, rank, slot = assign_slots(*stream(seed, count, image_share), ranks, steps, lookahead)
        placed = set(zip(step.tolist(), slot.tolist(), rank.tolist(), strict=True))
        assert placed == {(a, b, c) for a in range(steps) for b in range(slots) for c in range(ranks)}
        assert np.abs(step - np.arange(count) // (ranks * slots)).max() < lookahead


def test_images_stay_in_their_steps() -> None:
    generator = np.random.default_rng(0)
    images = generator.random(512) < 0.05
    costs = np.where(images, 0.3, generator.uniform(0.5, 3, 512))
    step, _, _ = assign_slots(costs, np.where(images, 60, 4), images, 32, 4, 4)
    own_step = np.arange(512) // 128
    assert (step[images] == own_step[images]).all()
    assert (step[~images] != own_step[~images]).any()


def planned(
    policy: Policy, ranks: int, regime: Regime = "slot", lookahead: int = 4, steps: int = 200
) -> SimulatedPlan:
    workload = WORKLOADS["koala-wide"]
    sizes = workload.batch_sizes(workload.budgets)
    return simulate(
        planned_steps(
            lambda step: workload.draw(sizes, 0, step, ranks * 4),
            StepLayout(ranks, 4, policy, regime, lookahead),
            PowerCost(),
            steps,
        )
    )


@pytest.mark.parametrize("ranks", beyond(1, [128, 16, 1024]))
def test_a_barrier_in_every_slot_costs_five_percent_and_keeps_the_composition(ranks: int) -> None:
    plain, balanced = (planned(policy, ranks).metrics for policy in ("dual_constraint", "balanced"))
    assert balanced.idle <= 0.05 < 0.3 < plain.idle
    assert balanced.image_share_std <= 1.2 * plain.image_share_std
    assert balanced.samples_std <= 1.2 * plain.samples_std


def test_looking_ahead_pays() -> None:
    ahead, alone = (planned("balanced", 64, lookahead=lookahead, steps=60) for lookahead in (4, 1))
    assert ahead.metrics.idle < 0.5 * alone.metrics.idle
