"""Solvers against the exact flow of Gaussian data, and against diffusers step by step."""

import itertools
import math

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    EDMEulerScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
    HeunDiscreteScheduler,
)

from train.config.objective import ConstantShift, DDPMConfig, EDMConfig, FlowConfig
from train.objectives.build import build_objective
from train.objectives.level import solve
from train.sampling.solvers.ode import sample

MEAN, SPREAD = 0.3, 0.7
OBJECTIVES = {
    "flow": FlowConfig(),
    "flow, shifted": FlowConfig(shift=ConstantShift(factor=3.0)),
    "edm": EDMConfig(sigma_max=20.0, sigma_min=0.05),
    "ddpm": DDPMConfig(
        prediction="v", timesteps=4096, beta_start=2e-5, beta_end=4e-3, zero_terminal_snr=True
    ),
}


def gaussian(x, signal, noise):
    """The expected clean latent and noise in x, of data N(MEAN, SPREAD^2): the best estimate there is."""
    gain = signal * SPREAD**2 / (signal**2 * SPREAD**2 + noise**2)
    clean = MEAN + gain * (x - signal * MEAN)
    return clean, (x - signal * clean) / noise


def points(objective, steps):
    level = objective.level(objective.schedule(steps, 1024))
    return list(zip(level.signal.tolist(), level.noise.tolist(), strict=True))


def error(config, solver, steps):
    """How far the last point is from that of the exact flow, which keeps x's place in units of its own spread."""
    chosen, asked = points(build_objective(config), steps), []

    def spread(signal, noise):
        return math.hypot(signal * SPREAD, noise)

    def estimate(x, number):
        asked.append(x)
        return gaussian(x, *chosen[number])

    place = torch.linspace(-2, 2, 5, dtype=torch.float64)
    (signal, noise), (last_signal, last_noise) = chosen[0], chosen[-1]
    sample(estimate, signal * MEAN + spread(signal, noise) * place, chosen, solver)
    exact = last_signal * MEAN + spread(last_signal, last_noise) * place
    return float((asked[-1] - exact).abs().max())


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
def test_the_error_falls_with_the_order_of_the_solver(config, solver, order):
    errors = [error(config, solver, steps) for steps in (64, 128, 256)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders[-1] == pytest.approx(order, abs=0.15), errors
    assert errors[-1] < (0.02 if order == 1 else 0.001)


@pytest.mark.parametrize(("solver", "asked"), [("euler", 5), ("heun", 9)])
def test_heun_asks_twice_a_step_but_once_at_the_last(solver, asked):
    chosen, seen, steps = points(build_objective(FlowConfig()), 5), [], []

    def estimate(x, number):
        seen.append(number)
        return gaussian(x, *chosen[number])

    sample(estimate, torch.zeros(1), chosen, solver, lambda: steps.append(1))
    assert len(seen) == asked
    assert len(steps) == 5


# What follows compares with diffusers: our solver's end with its scheduler's, for a model that is a nonlinear function.


def model(x, timestep_input):
    return torch.sin(3 * x + timestep_input) + 0.3 * x


def start(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def ours(config, solver, x, times=None):
    """Samples with the nonlinear model, given what it is told and as it is scaled."""
    objective = build_objective(config)
    times = objective.schedule(8, 1024) if times is None else times
    level = objective.level(times)
    chosen = list(zip(level.signal.tolist(), level.noise.tolist(), strict=True))

    def estimate(at, number):
        one = objective.level(times[number : number + 1])
        return solve(one, at, model(one.scale * at, one.timestep_input))

    return sample(estimate, x, chosen, solver)


def assert_close(found, expected):
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


X = (1, 2, 1, 3, 4)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_is_diffusers_flow_match_euler(shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / 8, 8).tolist())
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    assert_close(ours(FlowConfig(shift=ConstantShift(factor=shift)), "euler", x), expected)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_heun_is_diffusers_flow_match_heun(shift):
    scheduler = FlowMatchHeunDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    times = scheduler.sigmas[:-1].unique().flip(0).double()
    assert len(times) == 8
    assert_close(ours(FlowConfig(), "heun", x, times), expected)


def test_euler_is_diffusers_edm_euler():
    scheduler = EDMEulerScheduler()
    scheduler.set_timesteps(8)
    x = 80 * start(*X)
    expected = x
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(expected, t), t)
        expected = scheduler.step(output, t, expected).prev_sample
    assert_close(ours(EDMConfig(), "euler", x), expected)


@pytest.mark.parametrize(
    ("scheduler_class", "solver"), [(EulerDiscreteScheduler, "euler"), (HeunDiscreteScheduler, "heun")]
)
def test_edm_goes_as_diffusers_discrete_euler_and_heun_do(scheduler_class, solver):
    """Both take a denoiser's output as it is; their own levels, in the spacing of Karras et al."""
    scheduler = scheduler_class(
        prediction_type="sample", use_karras_sigmas=True, beta_schedule="scaled_linear"
    )
    scheduler.set_timesteps(8)
    objective = build_objective(EDMConfig())
    x = float(scheduler.sigmas[0]) * start(*X)
    expected = x
    for number, t in enumerate(scheduler.timesteps):
        sigma = scheduler.sigmas[number + (number % 2 if solver == "heun" else 0)]
        level = objective.level(sigma[None])
        scheduler.scale_model_input(expected, t)
        denoised, _ = solve(level, expected, model(level.scale * expected, level.timestep_input))
        expected = scheduler.step(denoised, t, expected).prev_sample
    times = scheduler.sigmas[:-1].unique().flip(0).double()
    assert len(times) == 8
    assert_close(ours(EDMConfig(), solver, x, times), expected)


def test_karras_levels_are_those_of_diffusers():
    scheduler = EDMEulerScheduler()
    scheduler.set_timesteps(12)
    assert_close(build_objective(EDMConfig()).schedule(12, 1), scheduler.sigmas[:-1])


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear"])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_euler_on_ddpm_is_diffusers_ddim(prediction, schedule):
    kind = {"epsilon": "epsilon", "v": "v_prediction"}[prediction]
    scheduler = DDIMScheduler(
        beta_schedule=schedule, prediction_type=kind, clip_sample=False, timestep_spacing="trailing"
    )
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    assert_close(ours(DDPMConfig(prediction=prediction, schedule=schedule), "euler", x), expected)


def test_euler_on_ddpm_is_diffusers_discrete_euler():
    """Which goes in x / signal."""
    scheduler = EulerDiscreteScheduler(timestep_spacing="trailing")
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x * float((scheduler.sigmas[0] ** 2 + 1).sqrt())
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(expected, t), t / 1000)
        expected = scheduler.step(output, t, expected).prev_sample
    assert_close(ours(DDPMConfig(), "euler", x), expected)
