"""`reelweave sample` with published folders of Wan: a picture, two experts, and what a folder lacks."""

import json
from pathlib import Path

import pytest
import yaml
from PIL import Image

from reelweave.pipelines.cli import main
from reelweave.pipelines.evaluation.videos import read_video
from tests.train.models.wan_pipelines import configured, publish

CONFIGS = Path(__file__).parents[3] / "pipelines/configs"
SIZE = ["--size", "32x48", "--frames", "5", "--steps", "4", "--device", "cpu", "--json", "--prompt", "a cat"]


def described(folder: Path, form: str, **update: object) -> Path:
    """The configuration of a run with a folder, as a file."""
    config = configured(folder, form, **update)
    path = folder / "run.json"
    shipped = yaml.safe_load((CONFIGS / "finetune_wan_lora.yaml").read_text())
    path.write_text(json.dumps(shipped | {"train": config.model_dump(mode="json")}))
    return path


def ends(capsys: pytest.CaptureFixture[str], config: Path, *words: str) -> tuple[int, dict, str]:
    status = main(["sample", "--config", str(config), *SIZE, *words])
    said = capsys.readouterr()
    return status, json.loads(said.out or "{}"), said.err


def test_two_experts_go_on_from_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = publish(tmp_path / "wan", "2.2 A14B I2V")
    config, out = described(folder, "2.2 A14B I2V"), tmp_path / "car.mp4"
    image = tmp_path / "car.png"
    Image.new("RGB", (60, 40), (200, 0, 0)).save(image)
    asked = ("--image", str(image), "--guidance-2", "2", "--out", str(out))
    status, said, err = ends(capsys, config, *asked)
    assert status == 0, err
    assert (said["guidance"], said["guidance_2"]) == (5, 2)
    assert read_video(out)[0].shape == (3, 5, 32, 48)
    for words, told in (
        (("--out", str(out)), "needs first frames: give some"),
        ((*asked, "--image-frames", "5"), "give fewer"),
        ((*asked, "--cache", "teacache"), "two experts: leave it out"),
        ((*asked, "--checkpoint-2", "runs/low"), "--checkpoint-2 belongs to --checkpoint"),
        ((*asked, "--lora-2", "nowhere"), "--lora nowhere"),
    ):
        status, _, err = ends(capsys, config, *words)
        assert (status, told in err) == (2, True), (words, err)
    index = folder / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"boundary_ratio": None}))
    status, _, err = ends(capsys, config, *asked)
    assert (status, "set model.boundary" in err) == (2, True), err
    config = described(folder, "2.2 A14B I2V", model={"boundary": 0.9})
    for part in (folder / "transformer_2").iterdir():
        part.unlink()
    status, _, err = ends(capsys, config, *asked)
    assert (status, "has neither transformer_2/config.json" in err) == (2, True), err


def test_one_model_for_text_takes_nothing_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = described(publish(tmp_path / "wan", "2.1 T2V"), "2.1 T2V")
    for words, told in (
        (("--image", "car.png"), "trained with train.first_frames"),
        (("--guidance-2", "2"), "guidance_2 is for a model with two experts"),
        (("--lora-2", "low"), "one model for all times"),
    ):
        status, _, err = ends(capsys, config, *words)
        assert (status, told in err) == (2, True), (words, err)
