"""Runs of published models move at the speed that these were trained at: buckets, validation and `sample`."""

from pathlib import Path

import av
import pytest
import yaml

from reelweave.pipelines.cli import main
from reelweave.pipelines.configuration.kinds import CONFIGS
from reelweave.pipelines.configuration.model_rate import resolve_run
from reelweave.train.models.published.frame_rate import frame_rate
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.train.models.wan_pipelines import configured, publish

SIZE = (32, 32)


def rate_of(path: Path) -> float:
    with av.open(str(path)) as opened:
        return float(opened.streams.video[0].average_rate)


def run_file(folder: Path, form: str, **buckets: object) -> Path:
    """A run of one step on clips of 25 frames per second, with a validation video, as a file."""
    clip = write_video(folder / "clip.mp4", (20,), size=SIZE).read_bytes()
    if not (folder / "clips").exists():
        write(folder / "clips", [make_sample(f"clip{number}", clip, 20, SIZE) for number in range(2)])
        publish(folder / "wan", form)
    config = configured(folder / "wan", form, lora={"rank": 2, "alpha": 2})
    train = config.model_dump(mode="json") | {"device": "cpu", "schedule": {"total_steps": 1}}
    values = {
        "dataset": str(folder / "clips"),
        "out": str(folder / "run"),
        "stream": {
            "workers": 1,
            "buckets": {
                "frames": [5], "sizes": [SIZE], "max_text_tokens": 9, "memory_tokens": 99,
                "compression": config.compression.model_dump(), **buckets,
            },
        },
        "train": train,
        "validation": {"prompts": ["a cat"], "every_steps": 1, "frames": 5, "height": 32, "width": 32, "steps": 1,
                       "guidance": 1},
    }  # fmt: skip
    file = folder / "train.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


@pytest.mark.parametrize(("form", "rate"), [("2.1 T2V", 16), ("2.2 TI2V 5B", 24)])
def test_a_run_and_its_videos_have_the_rate_of_the_model(
    form: str, rate: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--config", str(run_file(tmp_path, form))]) == 0
    said = capsys.readouterr().err
    assert "was trained at" not in said
    assert "frames repeat" not in said
    kept = yaml.safe_load((tmp_path / "run/train.yaml").read_text())
    assert kept["stream"]["buckets"]["sampling"] == {"mode": "fps", "stride": None, "fps": rate}
    assert rate_of(tmp_path / "run/validation/step-000001/000.mp4") == rate
    words = ["sample", "--checkpoint", str(tmp_path / "run"), "--prompt", "a cat", "--device", "cpu"]
    words += ["--size", "32x32", "--frames", "5", "--steps", "1", "--guidance", "1"]
    words += ["--out", str(tmp_path / "cat.mp4")]
    for more, expected in (([], rate), (["--fps", "12"], 12)):
        assert main([*words, *more]) == 0
        assert rate_of(tmp_path / "cat.mp4") == expected
        told = f"--fps 12: the model was trained at {rate} frames per second"
        assert (told in capsys.readouterr().err) == bool(more)


def test_other_rates_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run_file(tmp_path, "2.1 T2V", sampling={"mode": "window"})
    assert main(["train", "--config", str(file), "--set", "validation.fps=24"]) == 0
    said = capsys.readouterr().err
    window = "2 of 2 clips play at 25 frames per second, and {} was trained at 16"
    assert said.count(window.format(tmp_path / "wan")) == 1
    assert said.count(f"validation.fps is 24, and {tmp_path / 'wan'} was trained at 16") == 1
    assert rate_of(tmp_path / "run/validation/step-000001/000.mp4") == 24
    file = run_file(tmp_path, "2.1 T2V", sampling={"mode": "fps", "fps": 50})
    assert main(["train", "--config", str(file), "--set", f"out={tmp_path / 'fast'}"]) == 0
    said = capsys.readouterr().err
    assert "2 of 2 clips play at 50 frames per second" in said
    assert "2 of 2 clips have fewer than 50 frames per second" in said


def test_latents_tell_other_rates_before_they_encode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_file(tmp_path, "2.1 T2V", sampling={"mode": "window"})
    words = ["latents", str(tmp_path / "clips"), "--config", str(file), "--out", str(tmp_path / "set")]
    words += ["--set", "latents.runner=sequential", "--set", "latents.context=false"]
    assert main(words) == 0
    assert f"2 of 2 clips play at 25 frames per second, and {tmp_path / 'wan'} was trained at 16" in (
        capsys.readouterr().err
    )


def test_videos_of_our_own_models_have_the_rate_of_their_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_file(tmp_path, "2.1 T2V", sampling={"mode": "fps", "fps": 8})
    values = yaml.safe_load(file.read_text())
    values["train"] |= {
        "model": {"hidden": 24, "heads": 2, "layers": 1, "patch": [1, 2, 2]},
        "tokenizer": {"kind": "patch", "frames": 4, "height": 8, "width": 8},
        "lora": None,
    }
    file.write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(file)]) == 0
    assert rate_of(tmp_path / "run/validation/step-000001/000.mp4") == 8
    words = ["sample", "--checkpoint", str(tmp_path / "run"), "--prompt", "a cat", "--device", "cpu"]
    words += ["--size", "32x32", "--frames", "5", "--steps", "1", "--guidance", "1"]
    for more, expected in (([], 8), (["--layout", "training"], 8), (["--fps", "16"], 16)):
        capsys.readouterr()
        assert main([*words, *more, "--out", str(tmp_path / "cat.mp4")]) == 0
        assert rate_of(tmp_path / "cat.mp4") == expected
        said = "--fps 16: the model was trained at 8 frames per second"
        assert (said in capsys.readouterr().err) == (expected == 16)


@pytest.mark.parametrize(
    ("name", "form"), [("finetune_wan_lora", "2.1 T2V"), ("finetune_wan22_i2v_lora", "2.2 A14B I2V")]
)
def test_the_shipped_recipes_have_the_rate_of_their_models(name: str, form: str, tmp_path: Path) -> None:
    own = publish(tmp_path / "wan", form)
    config = resolve_run(CONFIGS / f"{name}.yaml", ["dataset=x", f"train.model.name={own}"])
    assert config.stream.buckets.sampling.fps == frame_rate(config.train.model) == 16


def test_models_of_ours_and_unread_ones_keep_the_default(tmp_path: Path) -> None:
    ours = resolve_run(CONFIGS / "train.yaml", ["dataset=x"])
    assert ours.stream.buckets.sampling.mode == "window"
    file = yaml.safe_load((CONFIGS / "finetune_wan_lora.yaml").read_text())
    file["stream"]["buckets"].pop("sampling")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(file))
    with pytest.raises(Exception, match=r"stream\.buckets\.sampling is not set.*model\.name"):
        resolve_run(tmp_path / "run.yaml", [f"train.model.name={tmp_path}"])
