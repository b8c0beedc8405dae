"""`reelweave train`: what is said before a run begins."""

from pathlib import Path

import pytest
import yaml

from pipelines.cli import main
from tests.loader.stream_clips import SHAPES, config, make_sample, write
from tests.media import write_video
from train.config.run import TrainConfig


def test_held_out_clips_that_fill_no_step_and_folders_of_datasets_are_told_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held-out clips are not met behind the first `held_out.every_steps`, which may be hours later."""
    frames, size = SHAPES[0]
    clip = write_video(tmp_path / "clip.mp4", (frames,), size=size).read_bytes()
    for name, count in (("clips", 4), ("held", 1)):
        write(tmp_path / name, [make_sample(f"{name}{n}", clip, frames, size) for n in range(count)])
    stream = config(microbatches=2, epochs=None).model_dump(mode="json")
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
    assert f"out: {tmp_path / 'clips'} is a dataset; give the run" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "clips").iterdir()) == before
