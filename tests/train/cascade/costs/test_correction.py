import json

import numpy as np
import pytest

from reelweave.train.cascade.online.correction import Correction, correct_problem, correction
from reelweave.train.cascade.online.measurements import Measurement, MeasurementWindow, measurements
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.static import static
from reelweave.train.cascade.simulation.cases import drawn_at_720p
from reelweave.train.cascade.simulation.simulate import Noise, execute
from reelweave.train.config.cascade import CorrectionConfig

CONFIG = CorrectionConfig()


def trained(
    iterations: int,
    gpus: int = 16,
    truth: dict[tuple[Module, int], float] | None = None,
    slow: dict[int, float] | None = None,
    sigma: float = 0.05,
    seed: int = 0,
    planner=lambda problem: plan(problem).best,
) -> MeasurementWindow:
    """What is measured on GPUs whose cascades take other times than predicted."""
    draw, window = np.random.default_rng(seed), MeasurementWindow()
    for number in range(iterations):
        problem = drawn_at_720p(gpus // 4, gpus, 1000 * seed + number)
        schedule = planner(problem)
        factors_R = Noise(sigma=sigma, slow=slow or {}).factors(schedule, draw)
        kinds = [(run.cascade.module, len(run.gpus)) for run in schedule.runs]
        factors_R *= [(truth or {}).get(kind, 1.0) for kind in kinds]
        window = window.with_iteration(measurements(problem, execute(schedule, factors_R)), CONFIG.iterations)
    return window


def measured(
    *ratios: float, gpus: tuple[int, ...] = (0, 1), module: Module = Module.DIT
) -> MeasurementWindow:
    return MeasurementWindow((tuple(Measurement(module, gpus, 1.0, ratio) for ratio in ratios),))


def test_nothing_measured_changes_nothing():
    problem = drawn_at_720p(4, 16, 0)
    found = correction(MeasurementWindow(), CONFIG)
    assert found == Correction()
    assert (
        correct_problem(problem, found.factors_of(problem.degrees_K)).seconds_SMK == problem.seconds_SMK
    ).all()


def test_factors_of_modules_and_degrees():
    truth = {(Module.DIT, 4): 1.4, (Module.DIT, 8): 1.2, (Module.VAE, 8): 0.8, (Module.TEXT, 1): 1.0}
    window = trained(8, 32, truth, planner=lambda problem: static(problem, 8))
    for number in range(8):
        other = trained(number + 1, 32, truth, seed=1, planner=lambda problem: static(problem, 4))
        window = MeasurementWindow((*window.iterations, *other.iterations[-1:]))
    found = correction(window, CONFIG)
    for kind, factor in truth.items():
        assert found.factors[kind] == pytest.approx(factor, rel=0.05)
    assert not found.slow
    assert len(found.summary()) == len(found.factors)


def test_factors_multiply_times_and_a_degree_without_measurements_keeps_its_own():
    found = correction(measured(*[1.5] * 20), CONFIG)
    problem = drawn_at_720p(4, 16, 0)
    better = correct_problem(problem, found.factors_of(problem.degrees_K))
    assert (better.possible_SMK == problem.possible_SMK).all()
    wanted_SMK = problem.seconds_SMK.copy()
    wanted_SMK[:, Module.DIT, problem.degrees_K == 2] *= found.factors[Module.DIT, 2]
    assert better.seconds_SMK == pytest.approx(wanted_SMK)


def test_few_measurements_move_a_factor_little_and_odd_ones_not_at_all():
    def factor(*ratios: float) -> float:
        return correction(measured(*ratios), CONFIG).factors[Module.DIT, 2]

    moved = [factor(*[1.5] * count) for count in (1, 4, 16, 64)]
    assert 1 < moved[0] < 1.3
    assert moved == sorted(moved)
    assert moved[-1] == pytest.approx(1.5, rel=0.05)
    assert factor(*[1.0] * 20, 50.0, 80.0) == pytest.approx(1)
    assert factor(*[100.0] * 100) == pytest.approx(CONFIG.most)
    assert factor(*[0.001] * 100) == pytest.approx(1 / CONFIG.most)


@pytest.mark.parametrize(("gpus", "slow"), [(16, {3: 1.5}), (16, {10: 1.3}), (64, {0: 2.0, 41: 1.4})])
def test_slow_gpus_are_named_and_do_not_change_factors(gpus, slow):
    found = correction(trained(8, gpus, {(Module.DIT, 8): 1.1}, slow), CONFIG)
    assert found.slow.keys() == slow.keys()
    for gpu, factor in slow.items():
        assert found.slow[gpu] == pytest.approx(factor, rel=0.06)
    assert found.factors[Module.DIT, 8] == pytest.approx(1.1, rel=0.04)


def test_noise_makes_no_gpu_slow():
    for seed in range(6):
        assert not correction(trained(8, 16, seed=seed, sigma=0.1), CONFIG).slow


def test_gpus_that_cannot_be_told_apart_are_named_together():
    window = MeasurementWindow(
        (
            tuple(Measurement(Module.DIT, (0, 1), 1.0, 1.5) for _ in range(10)),
            tuple(
                Measurement(Module.DIT, (2 + 2 * pair, 3 + 2 * pair), 1.0, 1.0)
                for pair in range(3)
                for _ in range(10)
            ),
        )
    )
    assert correction(window, CONFIG).slow == pytest.approx({0: 1.5, 1: 1.5})


def test_too_little_evidence_names_no_gpu():
    window = trained(1, 16, slow={3: 3.0})
    assert not correction(window, CONFIG).slow


def test_state_is_json_and_the_order_within_an_iteration_does_not_matter():
    window = trained(3, slow={3: 1.5})
    again = MeasurementWindow.from_rows(json.loads(json.dumps(window.rows())))
    assert again == window
    turned = MeasurementWindow(tuple(iteration[::-1] for iteration in window.iterations))
    assert correction(turned, CONFIG) == correction(window, CONFIG)


def test_the_window_forgets():
    window = measured(*[2.0] * 50)
    for _ in range(CONFIG.iterations):
        window = window.with_iteration(measured(*[1.0] * 5).iterations[0], CONFIG.iterations)
    assert len(window.iterations) == CONFIG.iterations
    assert correction(window, CONFIG).factors[Module.DIT, 2] == pytest.approx(1)
    odd = [
        Measurement(Module.DIT, (0,), predicted, seconds)
        for predicted, seconds in ((1, 0), (1, np.inf), (0, 1))
    ]
    assert window.with_iteration(odd, CONFIG.iterations).iterations[-1] == ()


def test_iterations_planned_with_what_the_last_ones_took_become_faster():
    """Groups of more than a node are slower than the cost model says; it plans with them less."""

    def executed(real: Problem, believed: Problem, seed: int) -> Schedule:
        schedule = plan(believed).best
        place = {degree: k for k, degree in enumerate(real.degrees_K.tolist())}
        real_R = [real.seconds_SMK[(*run.cascade, place[len(run.gpus)])] for run in schedule.runs]
        planned_R = [run.end_s - run.start_s for run in schedule.runs]
        noise_R = Noise(sigma=0.05).factors(schedule, np.random.default_rng(seed))
        return execute(schedule, noise_R * np.array(real_R) / planned_R)

    truth = Correction(factors={(Module.DIT, degree): 1.6 for degree in (12, 16, 24)})
    window, seconds = MeasurementWindow(), []
    for seed in range(12):
        problem = drawn_at_720p(16, 64, seed)
        real = correct_problem(problem, truth.factors_of(problem.degrees_K))
        found = correct_problem(problem, correction(window, CONFIG).factors_of(problem.degrees_K))
        ran = [executed(real, believed, seed) for believed in (problem, found, real)]
        window = window.with_iteration(measurements(problem, ran[1]), CONFIG.iterations)
        seconds.append([one.makespan_s for one in ran])
    wrong_s, corrected_s, right_s = np.sum(seconds[4:], axis=0)
    # Of what wrong costs lose, more than half is won back.
    assert right_s < 0.9 * wrong_s
    assert corrected_s - right_s < 0.5 * (wrong_s - right_s)
