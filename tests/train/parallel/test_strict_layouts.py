"""Layouts on process groups that refuse what NCCL would (tests/strict_group); `make strict` runs all of them so."""

import json

import pytest

from tests.thorough import but
from tests.train.parallel.layouts import STEPS, run_cases

CASES = ("pp-zero-then-fsdp", "hsdp-once", "mmdit-ulysses-tp", "pp-ring", "ring-ulysses", "tp-fsdp")


@pytest.mark.parametrize("name", but(CASES[:1], CASES))
def test_a_layout_sends_what_nccl_takes(ranks, tmp_path, name):
    ended = ranks.run(run_cases, 4, str(tmp_path), [name], strict=True)
    assert ended.codes == [0] * 4, ended.errors
    assert "process groups connected" in ended.errors[0]
    [metrics] = tmp_path.rglob("metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert len(losses) == STEPS
    assert None not in losses  # what was read before its time is nan
