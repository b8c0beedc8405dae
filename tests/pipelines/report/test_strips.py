"""Pictures of a clip come from its key frames where it has enough of them, since decoding all of it takes the time."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reelweave.pipelines.report.gallery.strips import FRAMES, strip
from tests.media import read_number, write_video
from tests.thorough import beyond

KEYS = 12


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    beyond(
        1,
        [
            ("libx264", "mp4", {"g": str(KEYS), "sc_threshold": "0"}),
            ("libx265", "mp4", {"x265-params": f"keyint={KEYS}:scenecut=0:open-gop=0:log-level=none"}),
            ("mpeg4", "mp4", {"g": str(KEYS), "sc_threshold": "1000000000"}),
        ],
    ),
)
@pytest.mark.parametrize("keys", beyond(1, [11, 8, 4]))
def test_they_are_key_frames_evenly_spread(
    codec: str, suffix: str, options: dict[str, str], keys: int, tmp_path: Path
) -> None:
    clip = write_video(tmp_path / f"a.{suffix}", (keys * KEYS,), codec=codec, options=options).read_bytes()
    numbers = shown(clip, keys * KEYS)
    assert len(numbers) == min(keys, FRAMES)
    assert sorted(set(numbers)) == numbers
    assert {number % KEYS for number in numbers} == {0}


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    beyond(
        1,
        [
            ("libx264", "mp4", {"g": "250"}),
            ("libvpx-vp9", "webm", {"g": "5", "deadline": "realtime", "cpu-used": "8"}),
        ],
    ),
)
def test_a_clip_of_few_key_frames_or_vp9_is_decoded(
    codec: str, suffix: str, options: dict[str, str], tmp_path: Path
) -> None:
    clip = write_video(tmp_path / f"a.{suffix}", (40,), codec=codec, options=options).read_bytes()
    assert shown(clip, 40) == [2, 7, 12, 17, 22, 27, 32, 37]


def test_of_a_clip_of_key_frames_alone_so_many_pictures_are_shown(tmp_path: Path) -> None:
    clip = write_video(tmp_path / "a.mp4", (40,), options={"g": "1"}).read_bytes()
    assert shown(clip, 40) == [2, 7, 12, 17, 22, 27, 32, 37]


def shown(clip: bytes, frames: int) -> list[int]:
    """The numbers in a strip's pictures."""
    made = strip(clip, frames)
    assert made is not None
    pictures = np.asarray(Image.open(io.BytesIO(made.jpeg)))
    assert pictures.shape[1] == made.frames * made.width
    return [read_number(picture) for picture in np.split(pictures, made.frames, axis=1)]
