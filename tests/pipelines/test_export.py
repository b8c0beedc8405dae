"""`reelweave export` of tiny runs."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pipelines.cli import main
from tests.train.clips import ClipStream, tiny_config
from train import checkpoint
from train.config import EmaConfig
from train.trainer import Trainer


@pytest.mark.parametrize(("more", "file"), [((), checkpoint.EMA), (("--no-ema",), checkpoint.MODEL)])
def test_a_model_of_ours_becomes_plain_safetensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], file: str
) -> None:
    config = tiny_config(2).model_copy(update={"ema": EmaConfig(decay=0.5)})
    saved = Trainer(config, ClipStream(), tmp_path / "run").run().checkpoint
    command = ["export", "--checkpoint", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json"]
    assert main([*command, *more]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["step"], said["ema"], said["merged"]) == (2, not more, False)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected = {name.removeprefix("dit."): weight for name, weight in load_file(saved / file).items()}
    assert all((weight == expected[name]).all() for name, weight in weights.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["kind"] == "dit"
    assert main([*command, *more]) == 2
    assert "exists" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
