"""The choice of who computes the operators."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loader.errors import UsageError
from train.kernels.providers import Provider, choose

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


def test_what_is_not_proven_is_taken_only_where_it_is_forced():
    unproven = replace(FAST, on_request=True)
    provider, reason = choose([unproven, EAGER], None)
    assert provider is EAGER
    assert "fast: only on request" in reason
    assert choose([unproven, EAGER], "fast")[0] is unproven


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
