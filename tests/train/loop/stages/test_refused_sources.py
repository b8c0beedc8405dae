"""Sources that a run does not begin with, each refused in one sentence."""

import shutil

import pytest

from reelweave.loader.errors import RunError, UsageError
from reelweave.pipelines.cli import main
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.run import TrainConfig
from tests.train.clips import tiny_config
from tests.train.loop.stages.stage_runs import adapters, model, run, staged
from tests.train.saved import change_state, newest


def test_a_tokenizer_is_no_source(tmp_path, first):
    shutil.copytree(first, tmp_path / "first")
    change_state(tmp_path / "first", lambda state: state["config"].update(kind="vae"))
    with pytest.raises(
        UsageError, match="is of `reelweave train-vae`, a tokenizer and no model that denoises"
    ):
        run(staged(tmp_path / "first"), tmp_path / "next")


def test_a_damaged_source_is_named(tmp_path, first):
    source = tmp_path / "first"
    shutil.copytree(first, source)
    [part] = (newest(source) / "ema").iterdir()
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    with pytest.raises(RunError, match=rf"{part} is damaged .*checksum"):
        run(staged(source), tmp_path / "next")
    assert not (tmp_path / "next" / "metrics.jsonl").exists()
    file = tmp_path / "cut.safetensors"
    assert main(["export", str(first), "--out", str(file)]) == 0
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(RunError, match=r"cut\.safetensors is damaged .*export it again"):
        run(staged(file), tmp_path / "next")


WRONG = {
    "a pickle": (
        lambda _: {"start_from": {"source": __file__}},
        r"is a file; give a folder, or a \.safetensors file",
    ),
    "no run": (
        lambda _: {"start_from": {"source": "nowhere"}},
        r"nowhere holds no checkpoint: it does not exist",
    ),
    "no file": (lambda _: {"start_from": {"source": "no.safetensors"}}, r"no\.safetensors does not exist"),
    "wider": (lambda _: {"model": model(hidden=96)}, "its hidden is 48, and train.model.hidden is 96"),
    "deeper": (lambda _: {"model": model(layers=3)}, "its layers is 2, and train.model.layers is 3"),
    "other kind": (
        lambda _: {"model": TrainConfig(model="tiny-st-dit").model},
        "its kind is 'dit', and train.model.kind is 'st_dit'",
    ),
    "adapters on all": (
        lambda first: {"lora": adapters(first)},
        r"holds all weights, and this run trains adapters: .*train\.lora\.checkpoint=",
    ),
    "other words": (
        lambda _: {"text": tiny_config().text.model_copy(update={"vocabulary": 99})},
        r"text\.\S+ has shape \[\d+, 16\] instead of \[\d+, 16\]",
    ),
    "average and moments": (
        lambda first: {"start_from": {"source": str(first), "optimizer": "kept"}},
        r"optimizer kept has moments of the last weights, .* set train\.start_from\.weights=model",
    ),
    "other moments": (
        lambda first: {
            "start_from": {"source": str(first), "optimizer": "kept", "weights": "model"},
            "optimizer": tiny_config().optimizer.model_copy(update={"moments": "8bit"}),
        },
        r"has another state than this run's .*exp_avg.* set train\.optimizer\.moments as there",
    ),
    "moments of a larger model": (
        lambda first: {
            "start_from": {"source": str(first), "optimizer": "kept", "weights": "model"},
            "first_frames": FirstFramesConfig(),
        },
        r"optimizer kept needs the weights as they are, .*25 more channels of first frames",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_makes_no_sense_is_refused_in_one_sentence(tmp_path, first, name):
    make, text = WRONG[name]
    with pytest.raises(UsageError, match=text) as caught:
        run(staged(**{"start_from": {"source": str(first)}} | make(first)), tmp_path / "next")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "next").exists()
