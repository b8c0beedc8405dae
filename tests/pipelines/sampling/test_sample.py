"""`reelweave sample` with a tiny trained checkpoint."""

import json
import os
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from reelweave.loader.read.decode import decode
from reelweave.pipelines.cli import main
from reelweave.pipelines.terminal.mp4 import encode_mp4
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream, tiny_config


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    config = tiny_config(4, every_steps=2).model_copy(update={"ema": EmaConfig(decay=0.5)})
    Trainer(config, ClipStream(), out).run()
    return out


def sampled(trained: Path, out: Path, *more: str) -> int:
    size = ("--size", "16x24", "--frames", "5", "--steps", "3")
    command = ["sample", "--checkpoint", str(trained), "--prompt", "a wave", *size, "--out", str(out)]
    return main([*command, "--device", "cpu", "--json", *more])


def test_it_writes_a_video_of_the_size_asked_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "wave.mp4"
    assert sampled(trained, out, "--fps", "12", "--seed", "7", "--solver", "heun") == 0
    said = json.loads(capsys.readouterr().out)
    assert Path(said["checkpoint"]).name == "step-000004"
    assert (said["step"], said["weights"], said["seed"], said["solver"]) == (4, "ema", 7, "heun")
    with av.open(str(out)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 12)
        shapes = [frame.to_ndarray(format="rgb24").shape for frame in container.decode(stream)]
    assert shapes == [(16, 24, 3)] * 5
    assert [path.name for path in out.parent.iterdir()] == ["wave.mp4"]


def test_a_video_that_is_replaced_is_said_and_a_pipe_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, pipe = tmp_path / "wave.mp4", tmp_path / "pipe.mp4"
    out.write_text("mine")
    os.mkfifo(pipe)
    assert sampled(trained, out) == 0
    assert f"{out} exists and is replaced" in capsys.readouterr().err
    assert sampled(trained, pipe) == 2
    assert "is no file" in capsys.readouterr().err
    assert pipe.is_fifo()


def test_the_same_call_gives_the_same_bytes_and_others_give_others(trained: Path, tmp_path: Path) -> None:
    def made(name: str, folder: Path, *more: str) -> bytes:
        assert sampled(folder, tmp_path / name, *more) == 0
        return (tmp_path / name).read_bytes()

    latest = trained / "checkpoints" / "step-000004"
    first = made("a.mp4", trained)
    assert made("b.mp4", latest) == first
    others = [
        made("seed.mp4", trained, "--seed", "1"),
        made("weights.mp4", trained, "--weights", "model"),
        made("early.mp4", trained / "checkpoints" / "step-000002"),
        made("guidance.mp4", trained, "--guidance", "1"),
    ]
    assert len({first, *others}) == 5


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--size", "16"), "--size 16 is no HEIGHTxWIDTH"),
        (("--size", "0x24"), "--size 0x24 is no HEIGHTxWIDTH"),
        (("--size", "15x24"), "even height and width"),
        (("--size", "18x24"), "height must be a multiple of 4, width a multiple of 4"),
        (("--frames", "4"), "4 frames do not fit tokenizer.frames=2"),
        (("--steps", "0"), "--steps cannot be 0"),
        (("--guidance", "-1"), "--guidance cannot be -1"),
        (("--solver", "rk4"), "--solver cannot be 'rk4'"),
        (("--fps", "0"), "--fps 0"),
        (("--checkpoint", "nowhere"), "nowhere holds no checkpoint"),
        (("--seed", "4294967296"), "--seed cannot be 4294967296"),
        (("--timesteps", "0.5,0.9,0.1"), "timesteps 0.5, 0.9, 0.1 must fall"),
        (("--timesteps", "1,0.5"), "--timesteps: steps is 3, but timesteps are 2"),
        (("--timesteps", "1,a,0"), "--timesteps cannot be 'a'"),
        (("--lora", "adapters"), "--lora belongs to --config"),
        (("--layout", "ulysses=2"), "must divide the 1 ranks"),
        (("--prompt", " "), "--prompt is empty"),
        (("--image-frames", "5"), "--image-frames belongs to --image"),
    ],
)
def test_a_wrong_call_is_told_in_words(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], told: str
) -> None:
    assert sampled(trained, tmp_path / "x.mp4", *more) == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_another_kind_is_not_written_over(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("mine")
    for out, reason in (
        (tmp_path / "video.avi", "video.avi: the video is an MP4 file"),
        (config, "train.yaml is a file; name another folder"),
    ):
        assert sampled(trained, out) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    assert config.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [config]


def test_a_configuration_without_published_weights_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Path(__file__).parents[3] / "pipelines/configs/train.yaml"
    size = ("--size", "16x24", "--frames", "5", "--out", str(tmp_path / "x.mp4"), "--device", "cpu")
    assert main(["sample", "--config", str(config), "--weights", "ema", "--prompt", "a", *size]) == 2
    assert "--weights belongs to --checkpoint" in capsys.readouterr().err
    assert main(["sample", "--config", str(config), "--prompt", "a wave", *size]) == 2
    assert "a model of ours, whose weights come from training" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert sampled(trained, tmp_path / "file" / "x.mp4") == 2
    assert "x.mp4 cannot be written" in capsys.readouterr().err


def test_colours_come_back_as_they_went_in() -> None:
    """Through 4:2:0 and our own decoder, which takes BT.601 where a file names no matrix."""
    video_CTHW = np.zeros((3, 4, 32, 48), np.uint8)
    colours = np.array([[200, 40, 40], [40, 180, 60], [50, 60, 210], [128, 128, 128]], np.uint8)
    for number, colour in enumerate(colours):
        video_CTHW[:, :, :, 12 * number : 12 * number + 12] = colour[:, None, None, None]
    found_CTHW = np.empty_like(video_CTHW)
    decode(encode_mp4(video_CTHW, 24), np.arange(4), found_CTHW)
    inner = [12 * number + 6 for number in range(4)]
    off = np.abs(found_CTHW[..., inner].astype(int) - video_CTHW[..., inner].astype(int))
    assert off.max() <= 6
    assert torch.from_numpy(off).float().mean() < 3
