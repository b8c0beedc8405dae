"""Samples packed: each once, no pack too full, packs of equal cost, and the same packs everywhere."""

import hashlib
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost import LinearQuadraticCost, PowerCost
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.plan.packing import (
    CARRIED,
    PackSizes,
    balanced_packs,
    cu_seqlens,
    num_taken,
    packs_in_order,
)
from reelweave.loader.simulation.packed_steps import PackedStep, packed_steps, simulate_packs
from reelweave.loader.simulation.workloads import WORKLOADS
from tests.loader.plan.hard_packs import mixtures
from tests.loader.plan.hard_packs import packed as packed_hard
from tests.thorough import beyond

TOKENS = 10_000


def mixture(count: int, seed: int) -> np.ndarray:
    """Many short samples and few long ones."""
    generator = np.random.default_rng(seed)
    return np.where(generator.random(count) < 0.3, 100, generator.integers(100, 5000, count))


def packed(lengths: np.ndarray, step: PackSizes, carried: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The lengths that a step takes, and their packs."""
    lengths = lengths[: num_taken(lengths, lengths.astype(float) ** 2, step)]
    return lengths, balanced_packs(lengths, lengths.astype(float) ** 2, step, carried)


def stream(lengths: np.ndarray) -> Callable[[int], Microbatches]:
    """Epochs of these samples; a sample's bucket is its place in the epoch."""
    one = np.ones_like(lengths)
    return lambda _: Microbatches(np.arange(len(lengths)), one, lengths, lengths, 0 * one)


def steps_of(
    lengths: np.ndarray, step: PackSizes, steps: int, policy: str = "balanced", **budgets
) -> list[PackedStep]:
    limits = Budgets(memory_tokens=step.tokens, **budgets)
    planned = packed_steps(
        stream(lengths), policy, limits.counted_cost, limits, step.ranks, step.packs, steps
    )
    return [one for one, _ in planned]


@pytest.mark.parametrize(("ranks", "packs"), [(1, 1), (1, 3), (4, 1), (7, 3), (16, 4)])
def test_no_pack_is_too_full_or_empty_and_nothing_is_left_over(ranks: int, packs: int) -> None:
    step = PackSizes(ranks, packs, TOKENS)
    for seed in range(5):
        lengths, pack = packed(mixture(20 * step.per_step, seed), step)
        held = np.bincount(pack, lengths, minlength=step.per_step)
        assert len(held) == step.per_step
        assert held.min() > 0
        assert held.max() <= TOKENS
        assert held.sum() == lengths.sum() >= 0.85 * step.per_step * TOKENS - 5000


@pytest.mark.parametrize("ranks", [8, 64])
def test_hardly_anybody_waits_neither_once_a_step_nor_after_every_pack(ranks: int) -> None:
    step = PackSizes(ranks, 4, TOKENS)
    lengths, pack = packed(mixture(40 * ranks, 1), step)
    loads_jR = np.bincount(pack, lengths.astype(float) ** 2).reshape(4, ranks)
    assert loads_jR.sum(axis=0).max() < 1.005 * loads_jR.sum(axis=0).mean()
    assert loads_jR.max(axis=1).sum() < 1.03 * loads_jR.mean(axis=1).sum()


def test_a_sample_dearer_than_the_mean_meets_its_like_in_its_slot() -> None:
    lengths = np.array([9000, 8990, 2000, 2010, 1990, 2020, 100, 110])
    pack = balanced_packs(lengths, lengths.astype(float) ** 2, PackSizes(2, 2, TOKENS))
    loads = np.bincount(pack, lengths.astype(float) ** 2).reshape(2, 2)
    assert loads[0].min() > 8e7 > 1e7 > loads[1].max()


def test_a_sample_longer_than_a_pack_is_alone_in_it() -> None:
    step = PackSizes(4, 2, TOKENS)
    lengths = np.concatenate([[25_000, 12_000], mixture(100, 3)])
    lengths, pack = packed(lengths, step)
    for sample in (0, 1):
        assert (pack == pack[sample]).sum() == 1
    one = steps_of(lengths, step, 1)[0]
    assert one.alone == 2
    assert one.fill <= 1


def test_a_sample_without_room_is_first_in_the_next_step_and_waits_no_longer() -> None:
    # Two of them make a pack, so that 85 % of the tokens are more samples than fit.
    step = PackSizes(4, 5, TOKENS)
    generator = np.random.default_rng(0)
    lengths = generator.integers(3_400, 4_200, 2000)
    steps = steps_of(lengths, step, 12)
    assert all(one.carried for one in steps)
    order = [one.planned.microbatches.bucket for one in steps]
    seen = np.concatenate(order)
    assert len(set(seen.tolist())) == len(seen)
    for number, one in enumerate(order[:-1]):
        by_then = np.concatenate(order[: number + 1])
        assert len(by_then) < one.max() + 1
        assert set(range(one.max())) <= {*by_then.tolist(), *order[number + 1].tolist()}


def test_carried_samples_begin_packs_even_if_nothing_else_fits() -> None:
    step = PackSizes(3, 1, TOKENS)
    lengths = np.array([9_000, 9_100, 9_900, 9_900, 9_900])
    pack = balanced_packs(lengths, lengths.astype(float) ** 2, step, carried=2)
    assert set(pack[:3].tolist()) == {0, 1, 2}
    assert pack[3:].tolist() == [CARRIED, CARRIED]


@pytest.mark.parametrize("policy", ["equal_token", "balanced"])
def test_every_sample_of_the_stream_comes_once_an_epoch(policy: str) -> None:
    lengths = mixture(600, 5)
    steps = steps_of(lengths, PackSizes(4, 2, TOKENS), 60, policy)
    seen = np.concatenate([one.planned.microbatches.bucket for one in steps])
    counts = np.bincount(seen, minlength=600)
    assert counts.max() - counts.min() <= 1
    assert counts.min() >= 2
    assert np.mean([one.fill for one in steps]) > 0.75


def test_packs_filled_in_order_hold_what_fits_before_the_next() -> None:
    lengths = mixture(2000, 7)
    pack = packs_in_order(lengths, PackSizes(8, 4, TOKENS))
    assert (np.diff(pack) >= 0).all()
    held = np.bincount(pack, lengths[: len(pack)])
    assert len(held) == 32
    assert held.max() <= TOKENS
    following = lengths[np.flatnonzero(np.diff(pack, append=32)) + 1]
    assert (held + following > TOKENS).all()


def test_packs_are_the_same_everywhere_and_for_ever() -> None:
    lengths, pack = packed(mixture(5000, 11), PackSizes(32, 4, TOKENS))
    assert hashlib.sha256(pack.astype("<i8").tobytes()).hexdigest()[:16] == "54fc48b0aa08f2e6"
    other = balanced_packs(lengths, lengths.astype(float) ** 2 * 2.0**40, PackSizes(32, 4, TOKENS))
    assert np.array_equal(pack, other)


def test_a_compute_budget_bounds_what_a_step_takes() -> None:
    lengths, step = mixture(4000, 2), PackSizes(8, 4, TOKENS)
    limit = 0.5 * steps_of(lengths, step, 1)[0].planned.costs.sum() / 32
    bounded = steps_of(lengths, step, 1, compute_budget=limit)[0].planned.costs.sum() / 32
    assert 0.9 * limit < bounded <= limit


def test_a_pack_costs_what_every_pack_costs_and_its_samples() -> None:
    cost = LinearQuadraticCost(fixed_s=3.0, token_s=1e-4, square_s=1e-8)
    steps = packed_steps(stream(mixture(600, 1)), "balanced", cost, Budgets(memory_tokens=TOKENS), 4, 3, 2)
    for one, _ in steps:
        planned = one.planned
        samples = cost.sample_s(planned.microbatches.length).sum()
        assert planned.costs.sum() == pytest.approx(12 * 3.0 + samples)
        assert set(zip(planned.placement.rank, planned.placement.slot, strict=True)) == {
            (rank, slot) for rank in range(4) for slot in range(3)
        }


@pytest.mark.parametrize(("ranks", "samples"), [(2, 20), (40, 20), (1, 0)])
def test_an_epoch_too_short_for_a_step_is_refused(ranks: int, samples: int) -> None:
    with pytest.raises(UsageError, match=f"an epoch of {samples} samples is too short"):
        steps_of(np.full(samples, 500), PackSizes(ranks, 1, TOKENS), 1)


@pytest.mark.parametrize("ranks", [16, 128])
def test_packs_of_a_wide_mixture_are_even_where_packs_in_order_are_not(ranks: int) -> None:
    workload = WORKLOADS["koala-wide"]
    in_order, balanced = (
        simulate_packs(
            packed_steps(
                lambda part: workload.samples(0, 8 * ranks * 144_000, part),
                policy,
                PowerCost(),
                workload.budgets,
                ranks,
                4,
                5,
            )
        )
        for policy in ("equal_token", "balanced")
    )
    assert balanced.metrics.idle < 0.001 < 0.2 < in_order.metrics.idle
    assert balanced.idle_slot < 0.005 < 0.4 < in_order.idle_slot
    assert balanced.metrics.padding == in_order.metrics.padding == 0
    assert balanced.metrics.image_share_std <= 1.5 * in_order.metrics.image_share_std + 0.01


def test_offsets_are_those_of_a_packed_sequence() -> None:
    offsets = cu_seqlens([3, 1, 5])
    assert offsets.tolist() == [0, 3, 4, 9]
    assert offsets.dtype == np.int32
    for wrong in ([3, 0], [2**31]):
        with pytest.raises(UsageError):
            cu_seqlens(wrong)


HARD = PackSizes(8, 1, 144_000)


@pytest.mark.parametrize("name", mixtures(1, HARD.tokens))
@pytest.mark.parametrize("ranks", beyond(1, [8, 4]))
def test_any_mixture_is_packed_in_bounded_time_and_memory(name: str, ranks: int) -> None:
    # With packs of hundreds of samples an exchange of two for two once took n^2 x n^2 numbers, 39.5 GiB.
    step = HARD if ranks == HARD.ranks else PackSizes(ranks, 2, 500_000)
    lengths = mixtures(step.per_step * step.tokens // 70, step.tokens)[name]
    limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 512 * 2**20, limit[1]))
    try:
        found = packed_hard(lengths, step)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert found.peak_mib < 40 + 200e-6 * found.samples
    assert found.seconds < 10
    assert found.fullest <= 1
    assert found.carried < step.per_step
    assert found.floor - 1e-9 <= found.idle
    if name.startswith(("images", "latents")):
        assert found.idle < 0.002


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
