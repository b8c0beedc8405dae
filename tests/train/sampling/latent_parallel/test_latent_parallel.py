"""Latent Parallelism without ranks: axes, parts, weights, aids, and the volumes and shares that are published."""

import itertools
from collections import Counter

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.sampling.config import LatentParallelConfig
from reelweave.train.sampling.latent_parallel.aids import (
    channel_spread,
    combine_aided,
    rising,
    smooth_latents,
)
from reelweave.train.sampling.latent_parallel.axes import steps_to_mix
from reelweave.train.sampling.latent_parallel.parts import divide, divide_axis
from reelweave.train.sampling.latent_parallel.rules import MODES, UNITE_AIDS, Aids, Rules
from reelweave.train.sampling.latent_parallel.volumes import (
    LatentRun,
    ModelShape,
    divided_axes,
    exact_bytes,
    paper_worker_bytes,
    sent_bytes,
    shares,
)
from reelweave.train.sampling.latent_parallel.weights import blend_weights, ramp
from reelweave.train.sampling.ranks.agreement import fingerprint

WAN = (16, (1, 2, 2))
TABLE_1 = {
    (49, 1.0): (489.79, 430.88, 267.62),
    (49, 0.5): (322.71, 307.48, 184.08),
    (81, 1.0): (770.10, 703.07, 446.37),
    (81, 0.5): (507.25, 507.25, 314.94),
}
"""MiB of GPUs 2 to 4, arXiv 2512.07350v1: 480p, 60 steps."""


def wan_run(frames, parts=4, steps=50):
    return LatentRun(WAN[0], ((frames + 3) // 4, 60, 104), WAN[1], parts, steps)


@pytest.mark.parametrize(("frames", "overlap"), TABLE_1)
def test_the_volumes_of_the_papers_workers_are_its_table_1(frames, overlap):
    found = paper_worker_bytes(wan_run(frames, steps=60), overlap)
    assert [round(bytes_ / 2**20, 2) for bytes_ in found] == list(TABLE_1[frames, overlap])


@pytest.mark.parametrize(("frames", "gigabytes"), [(37, 0.29), (81, 0.62)])
def test_unites_bytes_are_those_counted_and_its_warm_up_step_is_more(frames, gigabytes):
    run = wan_run(frames)
    assert sent_bytes(run, MODES["unite"], 0) / 1e9 == pytest.approx(gigabytes, abs=0.005)
    if frames == 37:
        exact = exact_bytes(run, ModelShape(40, 5120, 40, 13824, 512))
        assert exact["ring"] / 1e9 == pytest.approx(19.2, abs=0.05)
        found = {name: round(50 * bytes_ / 1e9) for name, bytes_ in exact.items()}
        assert found == {"tensor parallel": 2875, "ring": 958, "ulysses": 479}


def test_unites_phases_in_50_steps():
    axes = divided_axes(wan_run(81).divisions(MODES["unite"]))
    assert Counter(axes) == {None: 1, 0: 11, 1: 22, 2: 16}
    assert axes[:7] == [None, 1, 2, 0, 1, 2, 0]
    assert axes[-4:] == [1, 1, 1, 1]
    assert sum(a == b for a, b in itertools.pairwise(axes)) == 5  # steps that mix nothing new


@pytest.mark.parametrize(
    ("parts", "linear", "attention", "total"),
    [(2, 0.64, 0.41, 1.27), (4, 0.39, 0.15, 1.37), (8, 0.18, 0.035, 1.32)],
)
def test_unites_shares_of_work(parts, linear, attention, total):
    found = shares(wan_run(81, parts), MODES["unite"])
    assert found.linear == pytest.approx(linear, abs=0.005)
    assert found.attention == pytest.approx(attention, abs=0.005)
    assert found.total_linear == pytest.approx(total, abs=0.005)
    assert found.total_attention < 1 < found.total_linear


GRIDS = [(1, 1, 1), (3, 4, 5), (10, 30, 52), (13, 30, 52), (21, 45, 80), (2, 9, 7)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("overlap", [0, 0.2, 0.4, 1, 2.5])
def test_parts_cover_and_weights_sum_to_one(mode, overlap):
    rules = Rules.of(LatentParallelConfig(mode=mode, overlap=overlap, exact_steps=0))
    for grid, parts, number in itertools.product(GRIDS, (2, 3, 4, 5, 8, 11), range(0, 7, 2)):
        if mode == "balanced" and parts > max(grid):
            with pytest.raises(UsageError, match=f"lp={parts}.*at most {max(grid)}"):
                divide(rules, grid, (1, 2, 2), parts, number, 7)
            continue
        division = divide(rules, grid, (1, 2, 2), parts, number, 7)
        patches, N = grid[division.axis], grid[division.axis] * division.patch
        assert division.patch == (1, 2, 2)[division.axis]
        cores = [range(*part.core) for part in division.parts]
        assert [n for core in cores for n in core] == list(range(patches))
        weights_KN = blend_weights(division, rules.ramp)
        assert weights_KN.shape == (parts, N)
        torch.testing.assert_close(weights_KN.sum(0), torch.ones(N, dtype=torch.float64), rtol=0, atol=1e-15)
        for number_, part in enumerate(division.parts):
            outside = weights_KN[number_].clone()
            outside[division.rows(number_)] = 0
            assert not outside.any()
            assert 0 <= part.reach[0] <= part.core[0] <= part.core[1] <= part.reach[1] <= patches
        if overlap == 0:
            assert set(weights_KN.flatten().tolist()) <= {0.0, 1.0}
        if mode == "balanced":
            lengths = [len(core) for core in cores]
            assert min(lengths) >= 1
            assert max(lengths) - min(lengths) <= 1
            reach = torch.zeros(parts, N, dtype=torch.bool)
            for number_ in range(parts):
                reach[number_, division.rows(number_)] = True
            assert torch.equal(weights_KN > 0, reach)  # nothing is computed and thrown away


def test_ceil_leaves_groups_idle_and_even_parts_do_not():
    """13 latent frames on 6 and 8 groups, which the paper plots."""
    for parts in (6, 8):
        assert any(part.length == 0 for part in divide_axis(13, parts, 0.5, "ceil"))
        assert all(part.length > 0 for part in divide_axis(13, parts, 0.5, "even"))
    widths = [max(part.length for part in divide_axis(13, 4, 1.0, cores)) for cores in ("ceil", "even")]
    assert widths == [12, 11]


def test_ramps_and_their_ends():
    assert ramp(1, "closed_cosine").tolist() == [0]
    assert [ramp(1, kind).item() for kind in ("cosine", "linear")] == pytest.approx([0.5, 0.5])
    assert ramp(4, "linear").tolist() == [0.125, 0.375, 0.625, 0.875]
    assert ramp(3, "closed_cosine").tolist() == pytest.approx([0, 0.5, 1])
    for kind in ("linear", "cosine", "closed_cosine"):
        one = ramp(6, kind)
        assert (one.diff() > 0).all()
        torch.testing.assert_close(one + one.flip(0), torch.ones(6, dtype=torch.float64))


def reached(run, rules, first, steps):
    """Whether every position reaches every other in these steps: by following who reads whom."""
    grid = [size // patch for size, patch in zip(run.size, run.patch, strict=True)]
    places = torch.tensor(list(itertools.product(*map(range, grid))))
    reach = torch.eye(len(places), dtype=torch.bool)
    for division in run.divisions(rules)[first : first + steps]:
        sees = torch.ones(len(places), len(places), dtype=torch.bool)
        if division is not None:
            # Weights of patches: of their first rows.
            weights = blend_weights(division, rules.ramp)
            along = places[:, division.axis]
            sees = torch.zeros_like(sees)
            for number, part in enumerate(division.parts):
                rows = weights[number].reshape(-1, division.patch).amax(dim=1) > 0
                inside = (along >= part.reach[0]) & (along < part.reach[1])
                sees |= rows[along][:, None] & inside
        reach = (sees.float() @ reach.float()) > 0
    return bool(reach.all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("overlap", [0, 0.4])
@pytest.mark.parametrize(("parts", "size"), [(2, (3, 4, 8)), (3, (3, 8, 6)), (4, (2, 8, 8)), (4, (5, 2, 8))])
def test_every_position_reaches_every_other_within_the_steps_the_axes_promise(mode, overlap, parts, size):
    run = LatentRun(4, size, (1, 2, 2), parts, 12)
    rules = Rules.of(LatentParallelConfig(mode=mode, overlap=overlap))
    axes = divided_axes(run.divisions(rules))
    promised = [steps_to_mix(axes[first:]) for first in range(run.steps)]
    for first, steps in enumerate(promised):
        if steps is None:  # the end of the schedule, or a single axis
            assert len({axis for axis in axes[first:] if axis is not None}) <= 1
            continue
        assert reached(run, rules, first, steps)
        if overlap == 0 and steps > 1:
            assert not reached(run, rules, first, steps - 1)
    if mode == "paper" and None not in axes:
        assert promised[:-1] == [2] * 11
    if mode == "balanced" and sum(n >= parts for n in run.grid) > 1:
        assert set(promised[:-1]) == {2}


def test_few_steps_mix_little_and_this_is_said():
    for steps, unite, balanced in ((1, [None], [0]), (2, [None, 1], [0, 1])):
        for mode, expected in (("unite", unite), ("balanced", balanced)):
            assert divided_axes(wan_run(81, steps=steps).divisions(MODES[mode])) == expected
    assert steps_to_mix([0]) is None
    assert steps_to_mix([0, 0, 1]) == 3


def test_overlaps_fall_as_configured():
    found = {
        (0.4, 0.2): LatentParallelConfig(mode="unite"),
        (0.8, 0.4): LatentParallelConfig(mode="unite", overlap=0.8),
        (0.5, 0.5): LatentParallelConfig(mode="paper"),
        (1.0, 0.0): LatentParallelConfig(mode="paper", overlap=1.0, last_overlap=0.0),
    }
    for expected, config in found.items():
        assert Rules.of(config).overlap == pytest.approx(expected)
    assert Rules.of(LatentParallelConfig(mode="unite")).overlap_at(0.5) == pytest.approx(0.3)


def test_each_aid_has_its_own_switch():
    names = Aids._fields
    for name in names:
        assert Rules.of(LatentParallelConfig(**{name: True})).aids == Aids(
            **{name: getattr(UNITE_AIDS, name)}
        )
        assert getattr(Rules.of(LatentParallelConfig(mode="unite", **{name: False})).aids, name) == 0
    assert Rules.of(LatentParallelConfig()).aids == Aids()
    assert Rules.of(LatentParallelConfig(mode="unite")).aids == UNITE_AIDS


def test_a_video_without_rotation_is_divided_in_time():
    rules = Rules.of(LatentParallelConfig(mode="paper", rotate=False))
    assert set(divided_axes(wan_run(81).divisions(rules))) == {0}
    # Unless it has fewer frames than parts.
    assert set(divided_axes(LatentRun(16, (1, 60, 104), (1, 2, 2), 4, 5).divisions(rules))) == {1}


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_aids_do_what_their_strengths_say():
    cond, uncond = draw(2, 3, 2, 5, 6), draw(2, 3, 2, 5, 6, seed=1)
    weights = (5.0, -4.0)

    def at(progress, **aids):
        return combine_aided([cond, uncond], weights, Aids(**aids), progress, channel_spread)

    plain = uncond + 5 * (cond - uncond)
    assert torch.equal(at(1.0), plain)
    assert torch.equal(at(0.2, guidance_decay=0.1, delta_smoothing=0.1, rescale=0.35), plain)
    torch.testing.assert_close(at(1.0, guidance_decay=0.1), uncond + 4.5 * (cond - uncond))
    torch.testing.assert_close(at(0.8, guidance_decay=0.1), uncond + 4.75 * (cond - uncond))
    found = at(1.0, rescale=1.0)
    torch.testing.assert_close(found.std((2, 3, 4)), cond.std((2, 3, 4)))
    delta = cond - uncond
    middle = delta[:, :, :, 1:4, 2:5].mean((3, 4))
    found = at(1.0, delta_smoothing=0.1)
    expected = uncond[:, :, :, 2, 3] + 5 * (0.9 * delta[:, :, :, 2, 3] + 0.1 * middle)
    torch.testing.assert_close(found[:, :, :, 2, 3], expected)
    assert rising(0.775, 0.55, 0.1) == pytest.approx(0.05)
    # One pass has no guidance to aid.
    assert torch.equal(combine_aided([cond], (1.0,), UNITE_AIDS, 1.0, channel_spread), cond)


def test_smoothing_with_zeros_dims_borders_and_ours_does_not():
    flat = torch.ones(1, 1, 1, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(smooth_latents(flat, 0.3, zero_padded=False), flat)
    dimmed = smooth_latents(flat, 0.3, zero_padded=True)
    assert dimmed[0, 0, 0, 0, 1] == pytest.approx(1 - 0.3 / 3)
    assert dimmed[0, 0, 0, 1, 1] == pytest.approx(1)


def test_a_fingerprint_sees_every_bit_and_the_place():
    x = draw(2, 3, 4).float()
    own = int(fingerprint(x))
    for place in range(0, x.numel(), 5):
        other = x.clone()
        bits = other.view(-1).view(torch.int32)
        bits[place] ^= 1 << (place % 32)
        assert int(fingerprint(other)) != own
    assert int(fingerprint(x.flip(0))) != own
    assert int(fingerprint(x.clone())) == own
    assert int(fingerprint(x.double())) != own
