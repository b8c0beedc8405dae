"""Runs of every kind of model: they learn, they tell what they cost, and runs of before there were kinds go on."""

import json

import pytest
import torch

from reelweave.train.config.log import LogConfig
from reelweave.train.config.model import MMDiTConfig, STDiTConfig
from reelweave.train.config.objective import FlowConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure.peak_flops import measured_flops_per_s
from reelweave.train.models.bundle import Bundle
from tests.thorough import thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.saved import change_state

TINY = {"hidden": 48, "heads": 2, "layers": 2}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def metrics(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(STDiTConfig(**TINY, adaln_rank=8), id="st_dit", marks=thorough),
        pytest.param(MMDiTConfig(**TINY), id="mmdit"),
    ],
)
def test_a_model_of_another_kind_learns_and_resumes(tmp_path, model):
    def run(steps, out):
        config = tiny_config(steps, every_steps=20, lr=4e-3).model_copy(update={"model": model})
        return Trainer(config, ClipStream(), out).run()

    result = run(40, tmp_path / "whole")
    assert result.last_loss < 0.8 * result.first_loss
    run(20, tmp_path / "parts")
    run(21, tmp_path / "parts")
    assert metrics(tmp_path / "parts")[20]["step"] == 21


def test_a_step_tells_its_operations_and_their_share_of_the_peak(tmp_path):
    config = tiny_config(2).model_copy(
        update={
            "objective": FlowConfig(caption_dropout=0),
            "log": LogConfig(tensorboard=False, peak_tflops=0.5),
        }
    )
    Trainer(config, ClipStream(sizes=(3, 1)), tmp_path).run()
    dit = Bundle(config).dit
    # A start token and "a wave going N"; 5 x 16 x 16 and 3 x 16 x 24 pixels through a tokenizer of 2 x 2 x 2.
    expected = [4 * dit.flops(size, 5).training for size in ((3, 8, 8), (2, 8, 12))]
    recorded = metrics(tmp_path)
    assert [line["flops"] for line in recorded] == expected
    for line in recorded:
        assert line["mfu"] == pytest.approx(line["flops"] / line["step_s"] / 0.5e12)


def test_without_a_peak_no_share_is_guessed(tmp_path):
    Trainer(tiny_config(1), ClipStream(), tmp_path).run()
    assert metrics(tmp_path)[0]["mfu"] is None


def test_a_measured_peak_is_what_a_product_takes():
    assert 1e8 < measured_flops_per_s(torch.device("cpu")) < 1e14


def test_a_run_of_before_there_were_kinds_goes_on(tmp_path):
    newer, older = tmp_path / "newer", tmp_path / "older"
    for out in (newer, older):
        Trainer(tiny_config(4), ClipStream(), out).run()
    for name in ("kind", "adaln_rank"):
        change_state(older, lambda state, name=name: state["config"]["model"].pop(name))
    for out in (newer, older):
        Trainer(tiny_config(6), ClipStream(), out).run()
    assert [line["loss"] for line in metrics(older)] == [line["loss"] for line in metrics(newer)]
