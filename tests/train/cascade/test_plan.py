import numpy as np
import pytest

from loader.errors import UsageError
from train.cascade.bound import lower_bound
from train.cascade.cases import arachne, drawn_at_720p
from train.cascade.cells import in_cells
from train.cascade.check import violations
from train.cascade.plan import WORTH, plan
from train.cascade.problem import Module, Problem
from train.cascade.schedule import Schedule
from train.cascade.static import best_static, static


def random_problem(seed: int) -> Problem:
    """Samples of any number on GPUs of any number, with and without text encoder and VAE, and odd degrees."""
    draw = np.random.default_rng(seed)
    samples, gpus = int(draw.integers(1, 20)), int(draw.integers(1, 40))
    degrees_K = np.array([1, *sorted(draw.choice(np.arange(2, 17), 4, replace=False))])
    work_SM1 = draw.lognormal(0, 1, (samples, 3))[:, :, None]
    seconds_SMK = work_SM1 * (1 / degrees_K + draw.uniform(0, 0.02))
    seconds_SMK[:, Module.TEXT, 1:] = np.inf
    seconds_SMK[draw.random(samples) < 0.3, Module.VAE] = np.inf
    seconds_SMK[draw.random(samples) < 0.3, Module.TEXT] = np.inf
    memory_SMK = draw.lognormal(0, 1, (samples, 3))[:, :, None] / degrees_K
    usable_SMK = np.isfinite(seconds_SMK) & (degrees_K <= gpus)
    least_SM = np.where(usable_SMK, memory_SMK, np.inf).min(axis=2)
    return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, float(least_SM[np.isfinite(least_SM)].max()))


def test_the_case_study_of_arachne():
    problem = arachne()
    four, (best, degree) = static(problem, 4), best_static(problem)
    assert four.makespan_s == pytest.approx(58.6, abs=0.01)
    assert min(run.end_s for run in four.runs if run.cascade.module is Module.DIT) == pytest.approx(
        6.0, abs=0.01
    )
    assert (best.makespan_s, degree) == (pytest.approx(35.0, abs=0.05), 8)
    assert lower_bound(problem) == pytest.approx(33.30, abs=0.01)
    found = plan(problem)
    assert found.schedule.makespan_s <= 33.6
    assert violations(problem, found.schedule) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_plan_is_valid_never_below_the_bound_and_never_worse_than_static(seed):
    problem = random_problem(seed)
    found = plan(problem, seed)
    assert violations(problem, found.schedule) == []
    assert found.schedule.makespan_s >= found.bound_s * (1 - 1e-9)
    if found.static:
        assert violations(problem, found.static) == []
        assert found.schedule.makespan_s <= found.static.makespan_s


@pytest.mark.parametrize(("samples", "gpus", "most"), [(16, 16, 0.01), (64, 64, 0.01), (64, 256, 0.045)])
def test_plans_come_near_the_bound(samples, gpus, most):
    problem = drawn_at_720p(samples, gpus, seed=0)
    found = plan(problem)
    assert found.gap <= max(most, (1 + WORTH) * (1 + most) - 1 if found.schedule is found.static else 0)


def test_a_static_plan_stays_where_little_is_to_be_gained():
    problem = drawn_at_720p(256, 64, seed=1)
    found = plan(problem)
    assert found.schedule is found.static
    assert found.gap < WORTH + 0.01


def test_the_same_seed_gives_the_same_plan():
    problem = drawn_at_720p(16, 64, seed=2)
    first, again, other = (in_cells(problem, 32, 8, 500, seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert Schedule.from_rows(first.rows(), 64) == first


def test_what_fits_nowhere_is_named():
    times = np.ones((2, 3, 1))
    memory = np.array([[[1.0]] * 3, [[1.0], [1.0], [5.0]]]) * 2**30
    with pytest.raises(UsageError, match=r"DIT of sample 1 .* needs 5 GiB"):
        Problem(4, np.array([1]), times, memory, 2.0 * 2**30)
