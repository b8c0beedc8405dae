"""`reelweave train`: what is said before a run begins, and data that comes between two starts."""

import json
from pathlib import Path

import pytest
import yaml

from reelweave.loader.blend import open_blend
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.pipelines.cli import main
from reelweave.train.config.run import TrainConfig
from tests.loader.dataset.test_growth import add
from tests.loader.stream.test_stream_resume import run_steps
from tests.loader.stream_clips import SHAPES, config, make_sample, write
from tests.media import write_video
from tests.train.clips import tiny_config
from tests.train.saved import change_state, newest


def test_held_out_clips_that_fill_no_step_and_folders_of_datasets_are_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held-out clips are not met behind the first `held_out.every_steps`, which may be hours later."""
    frames, size = SHAPES[0]
    clip = write_video(tmp_path / "clip.mp4", (frames,), size=size).read_bytes()
    for name, count in (("clips", 4), ("held", 1)):
        write(tmp_path / name, [make_sample(f"{name}{n}", clip, frames, size) for n in range(count)])
    stream = config(microbatches=2, epochs=None, denominator="epoch").model_dump(mode="json")
    stream["buckets"] |= {"compression": TrainConfig().compression.model_dump(), "max_text_tokens": 65}
    values = {
        "dataset": str(tmp_path / "clips"),
        "out": str(tmp_path / "run"),
        "stream": stream,
        "train": {"device": "cpu"},
        "held_out": {"dataset": str(tmp_path / "held")},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(tmp_path / "train.yaml")]) == 2
    assert (
        f"held_out.dataset {tmp_path / 'held'}: 1 samples in buckets cannot fill" in capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()
    before = sorted(path.name for path in (tmp_path / "clips").iterdir())
    values |= {"out": values["dataset"], "held_out": None}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", "--config", str(tmp_path / "train.yaml")]) == 2
    printed = capsys.readouterr().err
    assert f"out: {tmp_path / 'clips'} is a dataset; give the run" in printed
    assert "stream.epochs" not in printed
    assert sorted(path.name for path in (tmp_path / "clips").iterdir()) == before
    # A run whose epochs end too early made all of their steps before it said so.
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values | {"stream": stream | {"epochs": 2}}))
    assert main(["train", "--config", str(tmp_path / "train.yaml")]) == 2
    assert (
        "stream.epochs=2 holds about 4 steps, and train.schedule.total_steps is 60" in capsys.readouterr().err
    )


def test_a_resume_with_other_buckets_names_the_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_video(tmp_path / "clip.mp4", (9,), size=(24, 16)).read_bytes()
    write(tmp_path / "clips", [make_sample(f"key{n}", clip, 9, (24, 16)) for n in range(4)])
    train = tiny_config(1)
    buckets = {
        "frames": [5], "sizes": [[16, 24]], "compression": train.compression.model_dump(),
        "max_text_tokens": 9, "memory_tokens": 300,
    }  # fmt: skip
    values = {
        "dataset": str(tmp_path / "clips"),
        "out": str(tmp_path / "run"),
        "stream": {"buckets": buckets, "workers": 1},
        "train": train.model_dump(mode="json"),
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values))
    command = ["train", "--config", str(tmp_path / "train.yaml")]
    assert main(command) == 0
    capsys.readouterr()
    asked = [
        "--set", "stream.buckets.memory_tokens=200", "--set", "stream.buckets.sampling={mode: fps, fps: 25}",
        "--set", "train.schedule.total_steps=2",
    ]  # fmt: skip
    assert main([*command, *asked]) == 2
    said = capsys.readouterr().err
    assert (
        "checkpoints/step-000001 was made with another stream: stream.buckets.memory_tokens was 300" in said
    )
    assert "and is 200 now; stream.buckets.sampling.fps was None and is 25.0 now;" in said
    assert "stream.buckets.sampling.mode was 'window' and is 'fps' now; resume with the old value" in said
    change_state(tmp_path / "run", lambda state: state.pop("plans"))
    assert main([*command, *asked]) == 2
    assert "is of an earlier version, which did not store the keys to compare" in capsys.readouterr().err
    assert main([*command, *asked[-2:]]) == 0


def test_a_resume_with_another_dataset_names_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = write_video(tmp_path / "clip.mp4", (9,), size=(24, 16)).read_bytes()
    for name, count in (("clips", 4), ("others", 6)):
        write(tmp_path / name, [make_sample(f"{name}{n}", clip, 9, (24, 16)) for n in range(count)])
    train = tiny_config(1)
    buckets = {
        "frames": [5], "sizes": [[16, 24]], "compression": train.compression.model_dump(),
        "max_text_tokens": 9, "memory_tokens": 300,
    }  # fmt: skip
    values = {
        "dataset": str(tmp_path / "clips"),
        "out": str(tmp_path / "run"),
        "stream": {"buckets": buckets, "workers": 1},
        "train": train.model_dump(mode="json"),
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(values))
    command = ["train", "--config", str(tmp_path / "train.yaml")]
    assert main(command) == 0
    capsys.readouterr()
    more = ["--set", "train.schedule.total_steps=2"]
    assert main([*command, *more, "--set", f"dataset={tmp_path / 'others'}"]) == 2
    said = capsys.readouterr().err
    assert (
        f"was made with another dataset: it was {tmp_path / 'clips'} (revision 0, 4 samples) and is"
        f" {tmp_path / 'others'} (revision 0, 6 samples) now" in said
    )
    change_state(tmp_path / "run", lambda state: state["plans"].pop("datasets"))
    assert main([*command, *more, "--set", f"dataset={tmp_path / 'others'}"]) == 2
    assert "cannot resume: dataset was" in capsys.readouterr().err
    assert main([*command, *more]) == 0


def test_a_run_goes_on_with_a_blend_that_grew(tmp_path: Path) -> None:
    """It draws what the stream by itself draws, whose own tests say that no draw is lost or repeated."""
    frames, size = 5, (24, 16)
    clip = write_video(tmp_path / "clip.mp4", (frames,), size=size).read_bytes()
    for name, count in (("a", 6), ("b", 3)):
        write(tmp_path / name, [make_sample(f"{name}{n}", clip, frames, size) for n in range(count)])
    file = tmp_path / "mix.yaml"
    file.write_text(yaml.safe_dump({"splits": {"train": {"blend": [{"path": "a"}, {"path": "b"}]}}}))
    config = tiny_config(2)
    buckets = {
        "frames": [5], "sizes": [[16, 24]], "compression": config.compression.model_dump(),
        "max_text_tokens": 9, "memory_tokens": 300, "max_batch": 2,
    }  # fmt: skip
    values = {
        "dataset": str(file),
        "out": str(tmp_path / "run"),
        "stream": {"buckets": buckets, "workers": 1},
    }
    stream, state = StreamConfig.model_validate(values["stream"]), None
    for done, total in ((0, 2), (2, 7)):
        train = config.model_dump(mode="json")
        train["schedule"]["total_steps"] = total
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(values | {"train": train}))
        assert main(["train", "--config", str(tmp_path / "train.yaml")]) == 0
        found, state = run_steps(open_blend(file), stream, 1, state, total - done)  # type: ignore[arg-type]
        assert json.loads((newest(tmp_path / "run") / "state.json").read_text())["stream"] == state
        if not done:
            add(tmp_path / "a", [make_sample(f"new{n}", clip, frames, size) for n in range(2)])
    assert any(key.startswith("new") for step in found for micro in step for key in micro.keys)
