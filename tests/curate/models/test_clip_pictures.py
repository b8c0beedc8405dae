"""Pictures for models: the right frames, evenly spaced, and a reason where there are none."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.models.clip_frames import ClipError, clip_pictures
from reelweave.loader.errors import UsageError
from tests.media import read_number, write_video


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("clip")
    return write_video(folder / "clip.mp4", (60,), size=(320, 192), options={"g": "20"}).read_bytes()


def numbers(pictures: np.ndarray) -> list[int]:
    return [read_number(picture) for picture in pictures]


def test_count_gives_the_middles_of_equal_parts(clip: bytes) -> None:
    pictures, times_s = clip_pictures(clip, count=4)
    assert pictures.shape == (4, 192, 320, 3)
    assert numbers(pictures) == [7, 22, 37, 52]
    np.testing.assert_allclose(times_s, np.array([7, 22, 37, 52]) / 25)


def test_fps_gives_what_is_shown_at_each_tick(clip: bytes) -> None:
    pictures, times_s = clip_pictures(clip, fps=2.0)
    assert numbers(pictures) == [0, 12, 25, 37, 50]
    assert list(times_s) == [0.0, 0.48, 1.0, 1.48, 2.0]


def test_count_limits_fps(clip: bytes) -> None:
    assert numbers(clip_pictures(clip, fps=5.0, count=3)[0]) == [10, 30, 50]


def test_more_pictures_than_frames_give_every_frame_once(clip: bytes) -> None:
    assert numbers(clip_pictures(clip, count=500)[0]) == list(range(60))
    assert numbers(clip_pictures(clip, fps=1000.0)[0]) == list(range(60))


def test_size_is_the_short_side_and_enlarges_nothing(clip: bytes) -> None:
    assert clip_pictures(clip, count=1, size=96)[0].shape == (1, 96, 160, 3)
    assert clip_pictures(clip, count=1, size=1000)[0].shape == (1, 192, 320, 3)
    assert clip_pictures(clip, count=1, size=(64, 36))[0].shape == (1, 36, 64, 3)


@pytest.mark.parametrize("kept", [0, 100, 5000])
def test_bytes_that_are_no_whole_clip_are_an_error_in_words(clip: bytes, kept: int) -> None:
    with pytest.raises(ClipError, match="does not decode"):
        clip_pictures(clip[:kept], count=4)


def test_a_clip_that_is_cut_off_is_an_error(clip: bytes, tmp_path: Path) -> None:
    path = tmp_path / "index-first.mp4"
    with (
        av.open(io.BytesIO(clip)) as given,
        av.open(str(path), "w", options={"movflags": "+faststart"}) as moved,
    ):
        stream = moved.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.size:
                packet.stream = stream
                moved.mux(packet)
    whole = path.read_bytes()
    assert len(clip_pictures(whole, fps=5.0)[0]) == 12
    with pytest.raises(ClipError, match="cut off"):
        clip_pictures(whole[: len(whole) // 2], fps=5.0)


def test_asking_for_no_pictures_is_a_wrong_call(clip: bytes) -> None:
    with pytest.raises(UsageError, match="count=0"):
        clip_pictures(clip, count=0)
