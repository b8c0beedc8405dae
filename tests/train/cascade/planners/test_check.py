import numpy as np
import pytest

from reelweave.train.cascade.problem import Cascade, Module, Problem
from reelweave.train.cascade.schedule import Run, Schedule
from tests.train.cascade.check import violations

TEXT, VAE, DIT = Module


def problem() -> Problem:
    """One sample on 4 GPUs: text 1 s on one, VAE 4 s and DiT 8 s divided; the DiT needs two GPUs' memory."""
    degrees_K = np.array([1, 2, 4])
    seconds = np.array([[[1, np.inf, np.inf], [4, 2, 1], [8, 4, 2]]], float)
    memory = np.array([[[1, 1, 1], [1, 1, 1], [4, 2, 1]]], float)
    return Problem(4, degrees_K, seconds, memory, 2.0)


def schedule(**changed) -> Schedule:
    """A valid one, but for what is changed: a module to (start, end, GPUs)."""
    runs = {"TEXT": (0, 1, (0,)), "VAE": (0, 2, (1, 2)), "DIT": (2, 4, (0, 1, 2, 3)), **changed}
    cascades = ((Cascade(0, Module[name]), told) for name, told in runs.items() if told)
    return Schedule.of((Run(cascade, *told) for cascade, told in cascades), 4)


def test_a_valid_schedule_passes():
    assert violations(problem(), schedule()) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"VAE": None}, "missing"),
        ({"VAE": (0, 2, (0, 1))}, "GPU 0 runs"),
        ({"DIT": (1.5, 3.5, (0, 1, 2, 3))}, "before what it needs"),
        ({"DIT": (2, 3, (0, 1, 2, 3))}, "takes 2 s on 4 GPUs"),
        ({"DIT": (2, 10, (0,))}, "needs 4 bytes"),
        ({"DIT": (2, 4, (0, 1, 2, 4))}, "no GPUs of its own"),
        ({"VAE": (0, 2, (1, 1))}, "no GPUs of its own"),
        ({"DIT": (2, 4, (0, 1, 2))}, "no degree"),
        ({"TEXT": (-1, 0, (0,))}, "before the iteration"),
    ],
)
def test_what_is_wrong_is_told(changed, told):
    assert any(told in one for one in violations(problem(), schedule(**changed)))


def test_a_module_may_be_a_plain_number():
    runs = [run._replace(cascade=Cascade(0, int(run.cascade.module))) for run in schedule().runs]
    assert violations(problem(), Schedule.of(runs, 4)) == []
    early = [run._replace(start_s=0.5, end_s=2.5) if run.cascade.module == DIT else run for run in runs]
    assert any("before what it needs" in one for one in violations(problem(), Schedule.of(early, 4)))
