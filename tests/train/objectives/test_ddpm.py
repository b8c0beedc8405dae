"""Against diffusers, whose tables are float32."""

import itertools

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.objective import DDPMConfig
from reelweave.train.objectives.ddpm import DDPM
from reelweave.train.objectives.level import pose

SCHEDULES = {"linear": "linear", "scaled_linear": "scaled_linear", "cosine": "squaredcos_cap_v2"}
CASES = list(itertools.product(SCHEDULES, ["epsilon", "v"], [False, True]))
STEPS = torch.tensor([0, 1, 37, 500, 998, 999])


def pair(schedule, prediction, zero):
    from diffusers import DDPMScheduler
    from diffusers.schedulers.scheduling_ddpm import rescale_zero_terminal_snr

    config = DDPMConfig(schedule=schedule, prediction=prediction, zero_terminal_snr=zero)
    scheduler = DDPMScheduler(beta_schedule=SCHEDULES[schedule])
    if zero:
        # Rescaled in float32, the least noise is off by one in a thousand.
        scheduler.alphas_cumprod = torch.cumprod(
            1 - rescale_zero_terminal_snr(scheduler.betas.double()), dim=0
        )
    return DDPM(config), scheduler


@pytest.mark.parametrize(
    ("schedule", "prediction", "zero"), [case for case in CASES if case[1] == "v" or not case[2]]
)
def test_inputs_and_targets_are_those_of_diffusers(schedule, prediction, zero):
    ddpm, scheduler = pair(schedule, prediction, zero)
    clean, noise = torch.randn(2, len(STEPS), 3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    asked, target = pose(ddpm.level(STEPS.float()).to(clean.device, clean.dtype), clean, noise)
    torch.testing.assert_close(asked, scheduler.add_noise(clean, noise, STEPS), rtol=1e-5, atol=1e-5)
    expected = noise if prediction == "epsilon" else scheduler.get_velocity(clean, noise, STEPS)
    torch.testing.assert_close(target, expected, rtol=1e-5, atol=1e-5)


def test_with_zero_terminal_snr_the_last_level_is_noise_alone():
    ddpm, _ = pair("scaled_linear", "v", True)
    assert ddpm.products[-1] == 0
    assert ddpm.products[0] == pair("scaled_linear", "v", False)[0].products[0]


@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_min_snr_weighs_the_error_of_the_clean_latent_by_the_snr_up_to_gamma(diffusers, prediction):
    from diffusers.training_utils import compute_snr

    ddpm = DDPM(DDPMConfig(prediction=prediction, min_snr_gamma=5.0))
    level, steps = ddpm.level(STEPS.double()), STEPS
    snr = compute_snr(diffusers.DDPMScheduler(), steps).double()
    # An error e of the prediction is one of (noise / determinant) e of the clean latent.
    determinant = level.signal * level.target_noise - level.noise * level.target_signal
    clean_error = (level.noise / determinant) ** 2
    torch.testing.assert_close(level.weight, clean_error * snr.clamp(max=5.0), rtol=1e-4, atol=0)
    assert (level.weight[:2] < 0.01).all()


def test_noise_alone_is_trained_on_with_min_snr():
    ddpm = DDPM(DDPMConfig(prediction="v", zero_terminal_snr=True, min_snr_gamma=5.0))
    assert ddpm.level(torch.tensor([999.0])).weight.item() == 1


def test_every_level_is_drawn_alike():
    ddpm = DDPM(DDPMConfig(timesteps=10))
    edges = torch.special.ndtri(torch.arange(100, dtype=torch.float64).add(0.5) / 100)
    counts = torch.stack([ddpm.time(edge, 1) for edge in edges]).long().bincount()
    assert counts.tolist() == [10] * 10


@pytest.mark.parametrize("steps", [1, 7, 50, 1000])
def test_the_schedule_is_diffusers_trailing_one(diffusers, steps):
    scheduler = diffusers.DDPMScheduler(timestep_spacing="trailing")
    scheduler.set_timesteps(steps)
    assert DDPM(DDPMConfig()).schedule(steps, 1).long().tolist() == scheduler.timesteps.tolist()


def test_more_steps_than_levels_are_refused():
    with pytest.raises(UsageError, match="1001 steps are more than the 1000 levels"):
        DDPM(DDPMConfig()).schedule(1001, 1)
