"""The choice of who computes the operators."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from loader.errors import RunError, UsageError
from train.kernels.checks.check import at_start
from train.kernels.eager import EAGER as EAGER_KERNELS
from train.kernels.providers import Provider, choose, load

ROOT = Path(__file__).parents[2]


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
    asked = []

    def wrong(kernels):
        asked.append(kernels)
        return "layer_norm_modulate is off" if kernels is HALF else None

    unproven = Provider("unproven", lambda: None, lambda: HALF, checked=False)
    right = Provider("right", lambda: None, lambda: kernels_of(2.0), checked=False)
    assert load([unproven, right, EAGER], None, wrong)[0] is right
    assert "unproven is not used: layer_norm_modulate is off" in caplog.text
    assert len(asked) == 2
    # What was checked when it was built is not checked again.
    assert load([replace(unproven, checked=True), EAGER], None, wrong)[1] is HALF
    with pytest.raises(
        RunError, match="REELWEAVE_KERNELS=unproven cannot be used: layer_norm_modulate is off"
    ):
        load([unproven, EAGER], "unproven", wrong)


def test_a_provider_that_does_not_load_is_left_out(caplog):
    def broken():
        raise RunError("the driver is too old\nfor this")

    references = Provider("eager", lambda: None, lambda: None)
    provider, kernels, _ = load([Provider("broken", lambda: None, broken), references], None, lambda _: None)
    assert (provider, kernels) == (references, None)
    assert "broken is not used: the driver is too old" in caplog.text


def kernels_of(factor):
    def off(*arguments):
        y, *statistics = EAGER_KERNELS.norm_modulate(*arguments)
        return y * factor, *statistics

    return replace(EAGER_KERNELS, norm_modulate=off)


HALF = kernels_of(0.5)


def test_the_check_at_start_finds_a_wrong_operator_and_passes_right_ones():
    cpu = torch.device("cpu")
    assert at_start(EAGER_KERNELS, cpu) is None
    assert "layer_norm_modulate of 199 x 1536" in at_start(kernels_of(1.02), cpu)


def test_the_variable_overrules_the_order():
    assert choose([FAST, EAGER], "eager")[0] is EAGER


@pytest.mark.parametrize(("forced", "words"), [("cudnn", "fast, broken, eager"), ("broken", "no GPU")])
def test_a_choice_that_cannot_be_had_is_refused(forced, words):
    with pytest.raises(UsageError, match=words):
        choose([FAST, BROKEN, EAGER], forced)


RUN = """
import logging, torch
logging.basicConfig(level=logging.INFO, format="%(message)s")
from train.kernels.norm_modulate.operator import layer_norm_modulate
for _ in range(3):
    layer_norm_modulate(torch.ones(1, 2, 4), torch.ones(1, 4), torch.ones(1, 4))
"""


@pytest.mark.parametrize("value", ["eager", "nonsense"])
def test_the_environment_is_asked_once_and_told_once(value):
    environment = os.environ | {"REELWEAVE_KERNELS": value}
    run = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if value == "eager":
        assert run.returncode == 0, run.stderr
        assert run.stderr.count("kernels: eager") == 1
    else:
        assert "UsageError" in run.stderr
        assert "REELWEAVE_KERNELS=nonsense" in run.stderr
