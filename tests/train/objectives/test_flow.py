import math

import pytest
import torch

from reelweave.train.config.objective import ConstantShift, ExponentialShift, FlowConfig, RootShift
from reelweave.train.objectives.flow import RectifiedFlow, shift_factor, shift_time
from reelweave.train.objectives.level import pose, quantile

NORMALS = torch.randn(4000, generator=torch.Generator().manual_seed(0))


def times(config: FlowConfig, tokens: int = 1024) -> torch.Tensor:
    return torch.stack([RectifiedFlow(config).time(normal, tokens) for normal in NORMALS])


def test_the_path_runs_from_data_to_noise_at_its_velocity():
    clean, noise = torch.randn(2, 3, 2, 3, 4, 4)
    flow = RectifiedFlow(FlowConfig())

    def at(t):
        return pose(flow.level(torch.full((3,), t)).to(clean.device, clean.dtype), clean, noise)

    (start, velocity), (middle, _), (end, _) = at(0.0), at(0.25), at(1.0)
    assert torch.equal(velocity, noise - clean)
    assert torch.equal(start, clean)
    assert torch.equal(end, noise)
    torch.testing.assert_close(middle, clean + 0.25 * velocity)


def test_logit_normal_times_have_the_mean_and_spread_asked_for():
    logits = torch.logit(times(FlowConfig(time_mean=0.5, time_std=0.8)))
    assert abs(logits.mean() - 0.5) < 0.05
    assert abs(logits.std() - 0.8) < 0.05


def test_uniform_times_are_the_quantiles():
    torch.testing.assert_close(
        times(FlowConfig(time="uniform")).double(), quantile(NORMALS), rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1.29])
def test_times_by_mode_are_those_of_diffusers(scale):
    from diffusers.training_utils import compute_density_for_timestep_sampling

    generator = torch.Generator().manual_seed(1)
    expected = compute_density_for_timestep_sampling("mode", 100, mode_scale=scale, generator=generator)
    u = torch.rand(100, generator=torch.Generator().manual_seed(1)).double()
    flow = RectifiedFlow(FlowConfig(time="mode", mode_scale=scale))
    found = torch.stack([flow.time(number, 1024) for number in torch.special.ndtri(1 - u)])
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-6)


def test_cosmap_weighs_as_diffusers_does_and_1_on_average():
    from diffusers.training_utils import compute_loss_weighting_for_sd3

    t = torch.linspace(0, 1, 10001, dtype=torch.float64)
    weight = RectifiedFlow(FlowConfig(weighting="cosmap")).level(t).weight
    torch.testing.assert_close(weight, compute_loss_weighting_for_sd3("cosmap", t))
    assert torch.trapezoid(weight, t).item() == pytest.approx(1, abs=1e-6)
    assert (RectifiedFlow(FlowConfig()).level(t).weight == 1).all()


@pytest.mark.parametrize("factor", [1.0, 3.0, 5.0])
def test_a_constant_shift_is_that_of_diffusers(diffusers, factor):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=factor)
    t = torch.arange(1000, 0, -1) / 1000
    torch.testing.assert_close(shift_time(t, factor), scheduler.sigmas, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tokens", [100, 256, 1024, 4096, 32760])
def test_the_exponential_shift_is_that_of_flux(diffusers, tokens):
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    mu = calculate_shift(tokens)
    assert shift_factor(ExponentialShift(), tokens) == pytest.approx(math.exp(mu))
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    t = torch.linspace(1, 0.1, 10, dtype=torch.float64)
    expected = torch.from_numpy(scheduler.time_shift(mu, 1.0, t.numpy()))
    torch.testing.assert_close(shift_time(t, shift_factor(ExponentialShift(), tokens)), expected)


def test_the_root_shift_keeps_the_uncertainty_of_a_mean_over_tokens():
    """SD3, on resolutions: noise over signal of the mean of n equal tokens falls with sqrt(n); the shift undoes it."""
    t, shift = torch.tensor(0.4, dtype=torch.float64), RootShift(base_tokens=256)
    uncertain = {
        n: (lambda s: s / (1 - s) / math.sqrt(n))(shift_time(t, shift_factor(shift, n))) for n in (256, 4096)
    }
    assert uncertain[256].item() == pytest.approx(uncertain[4096].item())


def test_sampling_is_shifted_as_training_is(diffusers):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / 8, 8).tolist())
    schedule = RectifiedFlow(FlowConfig(shift=ConstantShift(factor=3.0))).schedule(8, 1024)
    torch.testing.assert_close(schedule.float(), scheduler.sigmas[:-1], rtol=0, atol=1e-6)
