"""Solvers against the exact flow of Gaussian data, and against diffusers step by step."""

import itertools
import math

import numpy as np
import pytest
import torch

from reelweave.train.config.objective import ConstantShift, DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.objectives.build import build_objective
from reelweave.train.objectives.level import solve
from reelweave.train.sampling.solvers.exponential import RES, UniPC
from reelweave.train.sampling.solvers.ode import sample
from reelweave.train.sampling.solvers.point import CLEAN, Point

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


@pytest.mark.parametrize("solver", ["euler", "heun", "res", "unipc"])
@pytest.mark.parametrize("config", OBJECTIVES.values(), ids=OBJECTIVES)
def test_the_error_falls_with_the_order_of_the_solver(config, solver):
    """From noise alone, where lambda is infinite, no solver in lambda goes beyond 2."""
    order = {"euler": 1, "unipc": 3 if isinstance(config, EDMConfig) else 2}.get(solver, 2)
    errors = [error(config, solver, steps) for steps in (64, 128, 256)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    # RES begins with a step of order 1 from where lambda is infinite.
    assert orders[-1] == pytest.approx(order, abs=0.3 if solver == "res" else 0.15), errors
    assert errors[-1] < (0.02 if order == 1 else 0.002)


def exact_step(x, here, there, powers):
    """The end of the flow from x, where the clean latent is sum_k powers[k] lambda^k: integration by parts."""
    polynomial = np.polynomial.Polynomial(powers)
    total = polynomial
    for number in range(1, len(powers)):
        total = total + (-1) ** number * polynomial.deriv(number)
    integral = math.exp(there.log_snr) * total(there.log_snr) - math.exp(here.log_snr) * total(here.log_snr)
    return there.noise / here.noise * x + there.noise * integral


@pytest.mark.parametrize("objective", ["flow", "edm", "ddpm"])
@pytest.mark.parametrize(("solver", "degree"), [("res", 1), ("unipc", 2), ("unipc3", 3)])
def test_a_clean_latent_polynomial_in_lambda_is_integrated_exactly(solver, degree, objective):
    """RES to degree 1; UniPC-p, once corrected, to degree p, and as predicted (order 3) to degree 2."""
    chosen = [*(Point(*point) for point in points(build_objective(OBJECTIVES[objective]), 9)[1:]), CLEAN]
    powers = [0.7, -0.4, 0.3, 0.2][: degree + 1]

    def estimate(x, number):
        clean = np.polynomial.Polynomial(powers)(chosen[number].log_snr)
        return torch.tensor(clean, dtype=torch.float64), x

    stepper = RES(estimate, chosen) if solver == "res" else UniPC(estimate, chosen, degree)
    x, starts = torch.tensor(0.2, dtype=torch.float64), []
    for number in range(6):
        starts.append(x)
        x = stepper.step(x, number)
        if solver != "res":  # an evaluation corrects the state that it was asked for
            starts[-1] = stepper._start
    ends = [*starts[1:], x]
    for number in range(degree, 5):
        expected = exact_step(starts[number], *chosen[number : number + 2], powers)
        assert float(ends[number] - expected) == pytest.approx(0, abs=1e-10)


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


def theirs(scheduler, x, told, **step):
    """The states that a scheduler of diffusers asks the model about, and its end."""
    states = []
    for number, t in enumerate(scheduler.timesteps):
        states.append(x)
        x = scheduler.step(model(x, told(number, t)), t, x, **step).prev_sample
    return [*states, x]


def our_states(config, solver, x, times, noise=None):
    """The states that a solver of ours asks the model about, and its end."""
    objective, states = build_objective(config), []
    level = objective.level(times)
    chosen = list(zip(level.signal.tolist(), level.noise.tolist(), strict=True))

    def estimate(at, number):
        states.append(at)
        one = level[number]
        return solve(one, at, model(one.scale * at, one.timestep_input))

    end = sample(estimate, x, chosen, solver, noise=noise)
    return [*states, end]


@pytest.mark.parametrize(("solver", "order"), [("unipc", 2), ("unipc3", 3)])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_unipc_on_flows_is_diffusers_step_by_step(diffusers, shift, solver, order):
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift, solver_order=order
    )
    scheduler.set_timesteps(8)
    times = scheduler.sigmas[:-1].double()
    expected = theirs(scheduler, start(*X), lambda number, t: times[number])
    for found, other in zip(our_states(FlowConfig(), solver, start(*X), times), expected, strict=True):
        assert_close(found, other)
    # Theirs begins beside noise alone, where lambda is finite; ours begins there.
    from_noise = our_states(
        FlowConfig(), solver, start(*X), times.clone().index_fill(0, torch.tensor(0), 1.0)
    )
    assert (from_noise[-1] - expected[-1]).abs().max() <= 1e-3 * expected[-1].abs().max()


@pytest.mark.parametrize(("solver", "order"), [("unipc", 2), ("unipc3", 3)])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_unipc_on_ddpm_is_diffusers_step_by_step(diffusers, prediction, solver, order):
    kind = {"epsilon": "epsilon", "v": "v_prediction"}[prediction]
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type=kind, timestep_spacing="trailing", solver_order=order, beta_schedule="linear"
    )
    scheduler.set_timesteps(8)
    config = DDPMConfig(prediction=prediction, schedule="linear")
    objective = build_objective(config)
    times = objective.schedule(8, 1024)
    level = objective.level(times)
    sigmas = torch.cat([level.noise / level.signal, torch.zeros(1)])
    torch.testing.assert_close(scheduler.sigmas.double(), sigmas, rtol=1e-3, atol=0)
    scheduler.sigmas = (
        sigmas  # theirs are float32, and a clean latent of epsilon is a difference of large numbers
    )
    expected = theirs(scheduler, start(*X), lambda _, t: t / 1000)
    for found, other in zip(our_states(config, solver, start(*X), times), expected, strict=True):
        assert_close(found, other)


def test_few_steps_are_diffusers_flow_match_lcm(diffusers):
    scheduler = diffusers.FlowMatchLCMScheduler(shift=3.0)
    scheduler.set_timesteps(4)
    times = scheduler.sigmas[:-1].double()
    drawn = torch.Generator().manual_seed(5)
    expected = theirs(scheduler, start(*X).float(), lambda number, t: times[number], generator=drawn)
    again = torch.Generator().manual_seed(5)
    noise = {number: torch.randn(*X, generator=again) for number in range(1, 4)}
    found = our_states(FlowConfig(), "few_step", start(*X).float(), times, noise.__getitem__)
    for state, other in zip(found, expected, strict=True):
        assert_close(state, other)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_is_diffusers_flow_match_euler(diffusers, shift):
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / 8, 8).tolist())
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    assert_close(ours(FlowConfig(shift=ConstantShift(factor=shift)), "euler", x), expected)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_heun_is_diffusers_flow_match_heun(diffusers, shift):
    scheduler = diffusers.FlowMatchHeunDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    times = scheduler.sigmas[:-1].unique().flip(0).double()
    assert len(times) == 8
    assert_close(ours(FlowConfig(), "heun", x, times), expected)


def test_euler_is_diffusers_edm_euler(diffusers):
    scheduler = diffusers.EDMEulerScheduler()
    scheduler.set_timesteps(8)
    x = 80 * start(*X)
    expected = x
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(expected, t), t)
        expected = scheduler.step(output, t, expected).prev_sample
    assert_close(ours(EDMConfig(), "euler", x), expected)


@pytest.mark.parametrize(
    ("scheduler_class", "solver"), [("EulerDiscreteScheduler", "euler"), ("HeunDiscreteScheduler", "heun")]
)
def test_edm_goes_as_diffusers_discrete_euler_and_heun_do(diffusers, scheduler_class, solver):
    """Both take a denoiser's output as it is; their own levels, in the spacing of Karras et al."""
    scheduler = getattr(diffusers, scheduler_class)(
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


def test_karras_levels_are_those_of_diffusers(diffusers):
    scheduler = diffusers.EDMEulerScheduler()
    scheduler.set_timesteps(12)
    assert_close(build_objective(EDMConfig()).schedule(12, 1), scheduler.sigmas[:-1])


@pytest.mark.parametrize("schedule", ["linear", "scaled_linear"])
@pytest.mark.parametrize("prediction", ["epsilon", "v"])
def test_euler_on_ddpm_is_diffusers_ddim(diffusers, prediction, schedule):
    kind = {"epsilon": "epsilon", "v": "v_prediction"}[prediction]
    scheduler = diffusers.DDIMScheduler(
        beta_schedule=schedule, prediction_type=kind, clip_sample=False, timestep_spacing="trailing"
    )
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x
    for t in scheduler.timesteps:
        expected = scheduler.step(model(expected, t / 1000), t, expected).prev_sample
    assert_close(ours(DDPMConfig(prediction=prediction, schedule=schedule), "euler", x), expected)


def test_euler_on_ddpm_is_diffusers_discrete_euler(diffusers):
    """Which goes in x / signal."""
    scheduler = diffusers.EulerDiscreteScheduler(timestep_spacing="trailing")
    scheduler.set_timesteps(8)
    x = start(*X)
    expected = x * float((scheduler.sigmas[0] ** 2 + 1).sqrt())
    for t in scheduler.timesteps:
        output = model(scheduler.scale_model_input(expected, t), t / 1000)
        expected = scheduler.step(output, t, expected).prev_sample
    assert_close(ours(DDPMConfig(), "euler", x), expected)
