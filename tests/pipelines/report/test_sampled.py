"""Sampled videos in a dataset's report, beside the clips they are nearest to."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.dataset import DatasetWriter, open_dataset
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from reelweave.pipelines.evaluation.nearest import DatasetClips, clip_frames
from reelweave.pipelines.evaluation.shown import FirstFrames
from reelweave.pipelines.report.sampled import sampled_videos
from reelweave.pipelines.terminal.mp4 import encode_mp4
from tests.loader.stream_clips import make_sample

FRAMES = 12
CAPTIONS = {"red": "something <u>red</u>", "red-later": "something <u>red</u>", "blue": "something blue"}


def moving_square(colour: tuple[int, int, int], first: int, frames: int = FRAMES) -> np.ndarray:
    """A square of a colour that moves by 4 pixels a frame on grey, uint8 [3, frames, 64, 96]."""
    video_CTHW = np.full((3, frames, 64, 96), 128, np.uint8)
    for number in range(frames):
        left = 4 * (first + number)
        video_CTHW[:, number, 16:48, left : left + 32] = np.array(colour, np.uint8)[:, None, None]
    return video_CTHW


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    videos = {
        "red": moving_square((250, 20, 20), 0),
        "red-later": moving_square((250, 20, 20), 4),
        "blue": moving_square((20, 20, 250), 0),
    }
    with DatasetWriter(open_storage(folder)) as writer:
        for key, video_CTHW in videos.items():
            sample = make_sample(key, encode_mp4(video_CTHW, 24), FRAMES, (96, 64))
            sample.row["caption"] = CAPTIONS[key]
            writer.add(sample)
    return folder


def test_the_nearest_clip_is_found_by_its_frames(dataset: Path) -> None:
    clips, opened = DatasetClips(open_dataset(dataset)), open_dataset(dataset)
    keys = opened.index.column("key").to_pylist()
    noise = np.random.default_rng(0).normal(0, 20, (3, 5, 64, 96))
    for colour, first, key in (
        ((250, 20, 20), 3, "red"),
        ((250, 20, 20), 8, "red-later"),
        ((20, 20, 250), 1, "blue"),
    ):
        video_CTHW = np.clip(moving_square(colour, first, 5) + noise, 0, 255).astype(np.uint8)
        found = clips.nearest(video_CTHW)
        assert keys[found.row] == key
        assert found.psnr_db > 30
        assert found.other_psnr_db is not None
        assert found.other_psnr_db < 20


def test_a_video_shows_its_clip_only_where_nothing_unlearned_comes_as_near(dataset: Path) -> None:
    opened = open_dataset(dataset)
    rows = {key: row for row, key in enumerate(opened.index.column("key").to_pylist())}
    clips = FirstFrames(opened, list(rows.values()), FRAMES, (64, 96))
    assert len(clips.distinct(5)) == len(set(CAPTIONS.values())) == 2
    assert clips.distinct(1) == clips.distinct(5)[:1]
    red = clip_frames(opened, rows["red"], (64, 96))
    noise = np.random.default_rng(0).normal(0, 60, red.shape)
    for learned in (red, np.clip(red + noise, 0, 255), moving_square((200, 50, 50), 0)):
        assert clips.shown(learned.astype(np.uint8), rows["red"]).is_shown
    mean = red.mean(axis=1, keepdims=True)
    unlearned = {
        "first frame held": red[:, :1],
        "mean of its frames": mean,
        "mean colour": mean.mean(axis=(2, 3), keepdims=True),
        "another clip": clip_frames(opened, rows["blue"], (64, 96)),
        "of the same caption": clip_frames(opened, rows["red-later"], (64, 96)),
        "backwards": red[:, ::-1],
        "noise": noise + 128,
    }
    for name, answer in unlearned.items():
        video_CTHW = np.ascontiguousarray(np.broadcast_to(answer, red.shape)).clip(0, 255).astype(np.uint8)
        found = clips.shown(video_CTHW, rows["red"])
        assert not found.is_shown, name
        assert name in ("of the same caption", "backwards") or found.psnr_db <= found.unlearned_db + 0.1, name


def test_the_page_shows_samples_beside_their_clips_until_a_clip_is_removed(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    (samples / "000000.mp4").write_bytes(encode_mp4(moving_square((230, 30, 30), 2, 5), 24))
    record = {"file": "000000.mp4", "prompt": CAPTIONS["red"], "step": 5, "image": "ab", "image_frames": 1}
    (samples / "manifest.jsonl").write_text(json.dumps(record))
    assert main(["report", str(dataset), "--samples", str(samples)]) == 0
    page = (dataset / "report/index.html").read_text()
    kept = sampled_videos(open_dataset(dataset))
    assert [(one.nearest, one.prompt) for one in kept] == [("red", CAPTIONS["red"])]
    assert "data:image/png;base64," in page
    assert "something &lt;u&gt;red" in page
    assert "given: the first frame" in page
    assert (dataset / "report/sampled/000.mp4").read_bytes() == (samples / "000000.mp4").read_bytes()
    assert 'href="sampled/000.mp4"' in page

    assert main(["report", str(dataset)]) == 0  # and a later report keeps them
    assert (dataset / "report/index.html").read_text() == page

    assert main(["remove", str(dataset), "--key", "red", "--reason", "owner asked"]) == 0
    assert not list((dataset / "report").glob("sampled/*")), "a strip shows the clip"
    assert sampled_videos(open_dataset(dataset)) == []
    capsys.readouterr()


def test_a_folder_without_videos_is_refused(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(dataset), "--samples", str(tmp_path / "none")]) == 2
    assert "no folder with .mp4 files" in capsys.readouterr().err
