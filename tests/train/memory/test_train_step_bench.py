"""The benchmark of training steps: end to end with a toy, and how its figures are judged."""

import json

import pytest

from tests.bench.train_step import markdown, run
from tests.bench.train_step_cases import CASES, SMALL, TINY, WAN, measured
from tests.bench.train_step_goals import PEER, PEER_FULL, Row, goals
from tests.thorough import nightly

ROWS = [
    Row("nvrtc", 2.0, 0.01, 33_272, 850.0, 100.0, 99.0),
    Row("compiled, nvrtc", 1.7, 0.01, 33_272, 850.0, 90.0),
    Row("compiled, nvrtc, fp8 tensorwise", 1.0, 0.01, 33_272, 850.0),
    Row("nvrtc, full", 2.5, 0.01, 33_272, 850.0, 30.0, 31.2),
    Row(PEER, 3.4, 0.01, 33_272, 850.0, 120.0),
    Row("nvrtc, none", error="UsageError: REELWEAVE_KERNELS=nvrtc cannot work here"),
]


def test_the_best_step_counts_for_speed_and_the_worst_prediction_for_memory():
    mfu, faster, memory = goals(ROWS, peak_tflops=800.0)
    assert (mfu.reached, mfu.where, mfu.met) == (pytest.approx(850 / 1.7 / 800), "compiled, nvrtc", True)
    assert (faster.reached, faster.met) == (pytest.approx(2.0), True)
    assert (memory.reached, memory.where, memory.met) == (pytest.approx(0.04), "nvrtc, full", False)
    assert not goals(ROWS, peak_tflops=1200.0)[0].met
    assert {goal.met for goal in goals([row for row in ROWS if row.error], 800.0)} == {None}


def test_a_peer_that_does_not_fit_is_measured_with_checkpointing():
    without = [row for row in ROWS if row.case != PEER]
    rows = [*without, Row(PEER, error="OutOfMemoryError"), Row(PEER_FULL, 4.25)]
    assert goals(rows, 800.0)[1].reached == pytest.approx(2.5)
    assert goals([*rows, Row(PEER, 3.4)], 800.0)[1].reached == pytest.approx(2.0)


def test_the_page_shows_every_row_and_what_went_wrong():
    page = "\n".join(markdown({"device": "NVIDIA H200", "torch": "2.11", "tflops": 800.0}, ROWS))
    assert "| memory: error of the prediction | 0.03 | 0.040 **missed** | nvrtc, full |" in page
    assert "| nvrtc, full | 2.500 | 1.0% | 13,309 | 42.5% | 34.4% | 30.00 | 31.20 (+4.0%) |" in page
    assert "| nvrtc, none | not measured: UsageError: REELWEAVE_KERNELS=nvrtc cannot work here |" in page
    assert "The peak was not measured: no GPU" in "\n".join(markdown({"error": "no GPU"}, ROWS))


def test_the_shape_is_that_of_wan():
    tokens = WAN.latent[0] * (WAN.latent[1] // 2) * (WAN.latent[2] // 2)
    assert tokens == 32_760
    assert len({case.name for case in CASES}) == len(CASES)


@nightly
def test_it_runs_from_end_to_end(tmp_path):
    device, rows = run(tiny=True, out=tmp_path, only=("fp8 tensorwise",))
    assert device["tflops"] > 0
    lines = [json.loads(line) for line in (tmp_path / "train_step.jsonl").read_text().splitlines()]
    assert lines[0] == device
    assert [Row(**line) for line in lines[1:]] == rows
    assert [row.case for row in rows] == ["fp8 tensorwise"]
    peer, full = (measured(case, SMALL) for case in TINY if case.name in (PEER, PEER_FULL))
    assert full.tflop == peer.tflop
    for row in (peer, full, *rows):
        assert row.error is None
        assert row.step_s > 0
        assert row.tokens == 2 * 4 * 4 + 8
    # The same shape, but for six modulations a sample that Wan's blocks share, and its wider embedding of times.
    assert peer.tflop == pytest.approx(rows[0].tflop, rel=0.5)
