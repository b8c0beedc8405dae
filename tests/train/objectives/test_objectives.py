"""What holds for every objective; their own numbers are in test_flow, test_edm and test_ddpm."""

import math

import pytest
import torch
from pydantic import ValidationError

from reelweave.train.config.objective import (
    ConstantShift,
    DDPMConfig,
    EDMConfig,
    ExponentialShift,
    FlowConfig,
    RootShift,
)
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.objectives.build import build_objective
from reelweave.train.objectives.level import pose, quantile, solve
from reelweave.train.step.losses import losses
from tests.train.clips import ClipStream, tiny_config

OBJECTIVES = {
    "flow": FlowConfig(),
    "flow, uniform, shifted": FlowConfig(time="uniform", shift=ConstantShift(factor=3.0)),
    "flow, mode, cosmap": FlowConfig(time="mode", weighting="cosmap", shift=ExponentialShift()),
    "edm": EDMConfig(),
    "ddpm, epsilon": DDPMConfig(schedule="scaled_linear", beta_start=0.00085, beta_end=0.012),
    "ddpm, v": DDPMConfig(prediction="v", schedule="cosine", zero_terminal_snr=True, min_snr_gamma=5.0),
}
every_objective = pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
TOKENS = 900


def latents():
    torch.manual_seed(0)
    return torch.randn(2, 7, 3, 2, 4, 4, dtype=torch.float64)


def times(objective, normals):
    return torch.stack([objective.time(normal, TOKENS) for normal in normals])


@every_objective
def test_the_right_prediction_solves_to_the_clean_latent_and_the_noise(config):
    objective, (clean, noise) = build_objective(config), latents()
    level = objective.level(times(objective, torch.linspace(-2.5, 2.5, 7, dtype=torch.float64)))
    asked, target = pose(level, clean, noise)
    noisy = asked / level.scale[:, None, None, None, None]
    found_clean, found_noise = solve(level, noisy, target)
    torch.testing.assert_close(found_clean, clean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found_noise, noise, rtol=1e-8, atol=1e-8)


@every_objective
def test_time_rises_with_its_number_and_stays_finite(config):
    objective = build_objective(config)
    found = times(objective, torch.linspace(-9, 9, 99))
    assert (found.diff() >= 0).all()
    assert found[70] > found[30]
    level = objective.level(found)
    for name in ("signal", "noise", "scale", "timestep_input", "target_signal", "target_noise", "weight"):
        assert getattr(level, name).isfinite().all(), name
    assert (level.signal.diff() <= 0).all()
    assert (level.noise.diff() >= 0).all()


@every_objective
def test_a_schedule_goes_from_noise_to_less(config):
    objective = build_objective(config)
    for steps in (1, 2, 25):
        schedule = objective.schedule(steps, TOKENS)
        assert len(schedule) == steps
        assert (schedule.diff() < 0).all()
        level = objective.level(schedule)
        assert (level.signal / level.noise)[0] < 0.1


@every_objective
def test_a_sample_is_asked_the_same_in_any_batch(config):
    """To the last bit: vector instructions round unlike scalar ones."""
    objective = build_objective(config)
    normals = torch.randn(37, generator=torch.Generator().manual_seed(3))
    together = objective.level(times(objective, normals)).to(torch.device("cpu"), torch.float32)
    for i, normal in enumerate(normals):
        alone = objective.level(times(objective, [normal])).to(torch.device("cpu"), torch.float32)
        for name in ("signal", "noise", "scale", "timestep_input", "target_signal", "target_noise", "weight"):
            assert getattr(together, name)[i] == getattr(alone, name)[0], name


@pytest.mark.parametrize("name", ["flow", "edm", "ddpm"])
def test_a_microbatch_trains_as_its_samples_do_alone(name):
    config = TrainConfig.model_validate({**tiny_config().model_dump(), "objective": {"name": name}})
    bundle, device = Bundle(config), torch.device("cpu")
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    together = losses(bundle, config, ClipStream().microbatch(5), device)
    singles = [losses(bundle, config, ClipStream(sizes=(1,) * 4).microbatch(5, i), device) for i in range(4)]
    torch.testing.assert_close(together.each, torch.cat([one.each for one in singles]), rtol=1e-5, atol=0)
    assert torch.equal(together.normals, torch.cat([one.normals for one in singles]))
    assert len(together.each.unique()) == 4


def test_a_fixed_quantile_is_the_time_of_that_share_of_draws():
    config = tiny_config()
    bundle, batch, device = Bundle(config), ClipStream().microbatch(0), torch.device("cpu")
    found = losses(bundle, config, batch, device, quantile=0.25)
    torch.testing.assert_close(quantile(found.normals), torch.full((4,), 0.25, dtype=torch.float64))
    # The head is zero at first, so the loss is the mean square of the velocity: of the same noise at any time.
    assert torch.equal(found.each, losses(bundle, config, batch, device, quantile=0.75).each)


def test_a_loss_is_weighed_by_its_time():
    batch, device = ClipStream().microbatch(0), torch.device("cpu")
    plain, weighed = (
        tiny_config().model_copy(update={"objective": FlowConfig(weighting=weighting, time="uniform")})
        for weighting in ("none", "cosmap")
    )
    ratio = [losses(Bundle(one), one, batch, device, quantile=0.25).each for one in (weighed, plain)]
    expected = 2 / (math.pi * (1 - 2 * 0.25 + 2 * 0.25**2))
    torch.testing.assert_close(ratio[0] / ratio[1], torch.full((4,), expected))


def test_at_a_fixed_quantile_no_caption_is_dropped():
    config, batch, device = tiny_config(), ClipStream().microbatch(0), torch.device("cpu")
    never, always = (
        config.model_copy(update={"objective": FlowConfig(caption_dropout=share)}) for share in (0.0, 1.0)
    )
    bundle = Bundle(config)
    for parameter in bundle.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    fixed = [losses(bundle, one, batch, device, quantile=0.5) for one in (never, always)]
    drawn = [losses(bundle, one, batch, device) for one in (never, always)]
    assert torch.equal(fixed[0].each, fixed[1].each)
    assert not torch.equal(drawn[0].each, drawn[1].each)


def test_the_name_decides_the_objective_and_flow_needs_none():
    assert TrainConfig.model_validate({"objective": {"time_mean": 1.0}}).objective == FlowConfig(
        time_mean=1.0
    )
    assert TrainConfig.model_validate({"objective": {"name": "edm"}}).objective == EDMConfig()
    with pytest.raises(ValidationError, match="'flow', 'edm', 'ddpm'"):
        TrainConfig.model_validate({"objective": {"name": "score"}})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"name": "ddpm", "zero_terminal_snr": True}, "prediction"),
        ({"name": "edm", "sigma_min": 90.0}, "sigma_max"),
        ({"name": "flow", "shift": {"kind": "exponential", "base_tokens": 5000}}, "max_tokens"),
        ({"name": "flow", "mode_scale": 2.0}, "mode_scale"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, key):
    with pytest.raises(ValidationError, match=key):
        TrainConfig.model_validate({"objective": settings})


def test_samples_of_a_mixed_step_are_shifted_each_by_its_own_tokens():
    objective = build_objective(FlowConfig(shift=RootShift(base_tokens=256)))
    number = torch.tensor(0.0)
    assert objective.time(number, 256) == 0.5
    assert objective.time(number, 1024).item() == pytest.approx(2 / 3)
    assert objective.time(number, 64).item() == pytest.approx(1 / 3)
