"""Times of the steps, and the noise of each."""

import pytest
import torch
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.train.config.objective import ConstantShift, DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.objectives.build import build_objective
from reelweave.train.sampling.config import SampleConfig
from reelweave.train.sampling.solvers.noise import starting_noise, step_noise
from reelweave.train.sampling.solvers.schedule import sampling_levels, sampling_times

SIZE = {"frames": 1, "height": 16, "width": 16}


def times(objective, **options):
    return sampling_times(build_objective(objective), SampleConfig(**SIZE, **options), 64)


@pytest.mark.parametrize(
    ("objective", "given"),
    [
        (FlowConfig(), (1.0, 0.757, 0.522)),
        (EDMConfig(), (80.0, 5.0, 0.3)),
        (DDPMConfig(), (999.0, 499.0, 0.0)),
    ],
)
def test_explicit_times_are_taken_as_they_are(objective, given):
    assert times(objective, timesteps=given).tolist() == list(given)
    assert len(times(objective, steps=3)) == 3


@pytest.mark.parametrize(
    ("objective", "given", "told"),
    [
        (FlowConfig(), (0.5, 0.5), "must fall"),
        (FlowConfig(), (1000.0, 500.0), "above 0, up to 1, the most noise"),
        (FlowConfig(), (1.0, 0.0), "above 0, up to 1"),
        (EDMConfig(sigma_max=80.0), (90.0,), "up to 80"),
        (DDPMConfig(), (1000.0,), "0 to 999"),
        (DDPMConfig(), (500.5,), "whole numbers"),
    ],
)
def test_impossible_times_are_refused(objective, given, told):
    with pytest.raises(UsageError, match=told):
        times(objective, timesteps=given)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 7.0])
@pytest.mark.parametrize("steps", [1, 4, 30, 50, 333, 999])
def test_published_times_are_those_of_the_published_scheduler(diffusers, shift, steps):
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift
    )
    scheduler.set_timesteps(steps)
    objective = build_objective(FlowConfig(shift=ConstantShift(factor=shift)))
    levels = sampling_levels(objective, SampleConfig(**SIZE, steps=steps, timesteps="published"), 64)
    assert levels.noise.tolist() == scheduler.sigmas[:-1].double().tolist()
    assert (1000 * levels.timestep_input).round(decimals=9).tolist() == scheduler.timesteps.tolist()


def test_published_times_are_refused_where_none_are_published():
    with pytest.raises(UsageError, match="those of a flow"):
        sampling_levels(build_objective(EDMConfig()), SampleConfig(**SIZE, timesteps="published"), 64)
    with pytest.raises(UsageError, match="take fewer steps"):
        config = SampleConfig(**SIZE, steps=1000, timesteps="published")
        sampling_levels(build_objective(FlowConfig()), config, 64)
    with pytest.raises(ValidationError, match="few_step needs times"):
        SampleConfig(**SIZE, solver="few_step", timesteps="published")


def test_steps_and_times_that_differ_in_number_are_refused():
    assert SampleConfig(**SIZE, timesteps=(1.0, 0.5)).total_steps == 2
    with pytest.raises(ValidationError, match="steps is 3, but timesteps are 2"):
        SampleConfig(**SIZE, steps=3, timesteps=(1.0, 0.5))


def test_noise_is_a_function_of_seed_and_step_and_of_no_other_video():
    shape = (2, 1, 3, 4)
    both = step_noise([5, 6], 1, shape)
    torch.randn(3)
    assert torch.equal(step_noise([6], 1, shape)[0], both[1])
    different = [*both, *step_noise([5], 2, shape), *starting_noise([5, 6], shape)]
    assert len({one.numpy().tobytes() for one in different}) == 5
    # torch takes 32 bits of a seed: these two would be one.
    with pytest.raises(ValueError, match="ignores higher bits"):
        starting_noise([5 + (1 << 32)], shape)
    with pytest.raises(ValidationError):
        SampleConfig(**SIZE, seed=1 << 32)
