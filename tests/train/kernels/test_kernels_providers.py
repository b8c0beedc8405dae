"""The choice of who computes the operators."""

import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.kernels.checks.check import START, failures
from reelweave.train.kernels.cuda import start_check
from reelweave.train.kernels.eager import EAGER as REFERENCES
from reelweave.train.kernels.norm_modulate.operator import layer_norm_modulate
from reelweave.train.kernels.providers import Provider, choose, load
from tests.train.ranks import Ranks


def never():
    raise AssertionError


FAST, BROKEN, EAGER = (
    Provider("fast", lambda: None, never),
    Provider("broken", lambda: "no GPU", never),
    Provider("eager", lambda: None, never),
)


def test_the_first_that_can_work_is_taken_and_says_what_the_others_lack():
    assert choose([FAST, EAGER], None)[0] is FAST
    provider, reason = choose([BROKEN, EAGER], "")
    assert provider is EAGER
    assert "broken: no GPU" in reason


def test_a_provider_that_is_wrong_here_is_left_out_with_a_warning(caplog):
    off = Provider("off", lambda: None, lambda: REFERENCES, lambda: "layer_norm_modulate is off")
    right = Provider("right", lambda: None, lambda: REFERENCES)
    assert load([off, right, EAGER], None).provider is right
    assert "off is not used: layer_norm_modulate is off" in caplog.text
    with pytest.raises(RunError, match="REELWEAVE_KERNELS=off cannot be used: layer_norm_modulate is off"):
        load([off, EAGER], "off")


@pytest.mark.parametrize("error", [RunError, OSError])
def test_a_provider_that_does_not_load_is_left_out(caplog, error):
    def broken():
        raise error("the driver is too old\nfor this")

    references = Provider("eager", lambda: None, lambda: None)
    provider, kernels, _ = load([Provider("broken", lambda: None, broken), references], None)
    assert (provider, kernels) == (references, None)
    assert "broken is not used: the driver is too old" in caplog.text


def test_the_cases_of_the_start_find_a_wrong_operator_and_pass_right_ones():
    def off(*arguments):
        y, *statistics = REFERENCES.norm_modulate(*arguments)
        return y * 1.02, *statistics

    cpu = torch.device("cpu")
    assert not list(failures(REFERENCES, cpu, START))
    wrong = list(failures(REFERENCES.replace(norm_modulate=off), cpu, START))
    assert [one.split(" of")[0] for one in wrong] == ["layer_norm_modulate"] * 2


def test_a_check_in_a_process_of_its_own_may_end_it():
    def python(code, limit_s=60):
        return start_check.run([sys.executable, "-c", code], limit_s)

    assert python("print('right')") is None
    assert python("print('a case: off'); raise SystemExit(1)") == "its check failed: a case: off"
    assert python("import os; os.abort()") == "its check failed: exit status -6"
    assert python("import time; time.sleep(600)", limit_s=1) == "its check was not done after 1 s"


def test_what_passed_once_is_not_checked_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls, answers = [], ["it is off", None]
    monkeypatch.setattr(start_check, "run", lambda command: calls.append(command) or answers[len(calls) - 1])
    assert [start_check.wrong() for _ in range(4)] == ["it is off", None, None, None]
    assert len(calls) == 2


@pytest.mark.parametrize("verdict", [None, "it is off"])
def test_ranks_that_start_together_check_once_and_decide_alike(tmp_path, monkeypatch, verdict):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls, started = [], threading.Barrier(8)

    def run(command):
        calls.append(command)
        time.sleep(0.2)  # the others arrive meanwhile
        return verdict

    def rank(_number):
        started.wait()
        return start_check.wrong()

    monkeypatch.setattr(start_check, "run", run)
    with ThreadPoolExecutor(8) as ranks:
        found = list(ranks.map(rank, range(8)))
    assert found == [verdict] * 8
    # One that is late by so much that it asks behind the failure checks by itself.
    assert len(calls) == 1 if verdict is None else 1 <= len(calls) < 8


@pytest.mark.parametrize("cache", ["a file/cache", "x" * 300], ids=["no folder", "no name"])
def test_without_a_cache_folder_every_process_checks(tmp_path, monkeypatch, cache):
    (tmp_path / "a file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
    calls = []
    monkeypatch.setattr(start_check, "run", calls.append)
    assert [start_check.wrong() for _ in range(2)] == [None, None]
    assert len(calls) == 2


def test_the_variable_overrules_the_order():
    assert choose([FAST, EAGER], "eager")[0] is EAGER


@pytest.mark.parametrize(("forced", "words"), [("cudnn", "fast, broken, eager"), ("broken", "no GPU")])
def test_a_choice_that_cannot_be_had_is_refused(forced, words):
    with pytest.raises(UsageError, match=words):
        choose([FAST, BROKEN, EAGER], forced)


def choose_by_environment(value: str) -> None:
    """Call an operator three times in a process that nothing was chosen in."""
    os.environ["REELWEAVE_KERNELS"] = value
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    for _ in range(3):
        layer_norm_modulate(torch.ones(1, 2, 4), torch.ones(1, 4), torch.ones(1, 4))


def test_the_environment_is_asked_once_and_told_once(ranks: Ranks) -> None:
    run = ranks.run(choose_by_environment, 1, "eager")
    assert run.codes == [0], run.errors
    assert run.errors[0].count("kernels: eager") == 1
    run = ranks.run(choose_by_environment, 1, "nonsense")
    assert run.codes == [1]
    assert "UsageError" in run.errors[0]
    assert "REELWEAVE_KERNELS=nonsense" in run.errors[0]
