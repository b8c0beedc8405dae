"""Sound of more than two channels: each is heard on its side, nothing overflows, and the mix is said."""

import json
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.cut.aac import samples as track_of
from reelweave.curate.run.curate import curate
from reelweave.curate.run.tables.samples import OVERLAPS
from tests.cutting import curated, sound
from tests.media import write_video
from tests.player import ffmpeg
from tests.thorough import but

RATE, SECONDS = 48000, 3
SIDES = {"L": ("FL", "BL", "SL"), "R": ("FR", "BR", "SR"), "LR": ("FC", "BC")}
LAYOUTS = {
    "5.1": "FL FR FC LFE BL BR",
    "6.1": "FL FR FC LFE BC SL SR",
    "7.1": "FL FR FC LFE BL BR SL SR",
}


def film(path: Path, layout: str, codec: str, loud: float = 0.1) -> Path:
    """Write a film whose channels hold a tone each, 200 Hz apart."""
    names = LAYOUTS[layout].split()
    tones = "|".join(f"{loud}*sin({400 + 200 * index}*2*PI*t)" for index in range(len(names)))
    pictures = write_video(path.with_name("pictures.mp4"), (25 * SECONDS,))
    ffmpeg(
        [
            *f"-i {pictures} -f lavfi -i aevalsrc={tones}:c={layout}:s={RATE}:d={SECONDS}".split(),
            *f"-c:v copy -c:a {codec} -strict -2 -y {path}".split(),
        ]
    )
    return path


def levels(samples: np.ndarray, layout: str) -> dict[str, tuple[float, ...]]:
    """Return how loud the tone of each channel is in each channel of a clip."""
    middle = samples[:, RATE // 2 : RATE // 2 + RATE]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(RATE))) / RATE * 4
    names = LAYOUTS[layout].split()
    return {name: tuple(spectrum[:, 400 + 200 * index]) for index, name in enumerate(names)}


@pytest.mark.parametrize(
    ("name", "layout", "codec"),
    but(
        (("a.mov", "6.1", "pcm_s16le"), ("a.mov", "7.1", "pcm_s24le")),
        [
            ("a.mov", "6.1", "pcm_s16le"),
            ("a.mov", "7.1", "pcm_s16le"),
            ("a.mov", "7.1", "pcm_s24le"),
            ("a.mov", "7.1", "pcm_f32le"),
            ("a.mov", "5.1", "pcm_s16le"),
            ("a.mkv", "5.1", "flac"),
            ("a.mkv", "7.1", "flac"),
            ("a.mkv", "5.1", "libvorbis"),
            ("a.avi", "7.1", "pcm_s16le"),
        ],
    ),
)
def test_channels_are_mixed_to_their_sides(tmp_path: Path, name: str, layout: str, codec: str) -> None:
    """MOV orders those of 6.1 and 7.1 otherwise, which PyAV frees twice: the process ended, and the film failed."""
    path = film(tmp_path / name, layout, codec)
    ((record, clip),) = curated(path, tmp_path / "out")
    channels = len(LAYOUTS[layout].split())
    assert (record.state, record.audio) == ("kept", "aac")
    assert record.reason == f"its sound of {channels} channels is mixed down to stereo"
    mixed, rate, _ = sound(clip)
    assert (rate, len(mixed)) == (RATE, 2)
    heard = levels(mixed, layout)
    for side, names in SIDES.items():
        for channel in set(names) & set(heard):
            left, right = heard[channel]
            assert (left > 0.005, right > 0.005) == ("L" in side, "R" in side), (channel, heard)
    assert max(heard["LFE"]) < 0.005


def test_a_mix_of_loud_channels_does_not_overflow(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mkv", "5.1", "flac", loud=0.98)
    with av.open(str(path)) as container:
        track = track_of(container.decode(audio=0), 0, SECONDS)
    assert track is not None
    assert 0.5 < np.abs(track.samples).max() <= 1.0


def test_sound_of_two_channels_stays_as_it_is(tmp_path: Path) -> None:
    pictures = write_video(tmp_path / "pictures.mp4", (75,))
    ffmpeg(f"-i {pictures} -f lavfi -i sine=d=3 -ac 2 -c:v copy -c:a flac -y {tmp_path / 'a.mkv'}".split())
    ((record, _),) = curated(tmp_path / "a.mkv", tmp_path / "out")
    assert (record.audio, record.reason) == ("aac", "")


def test_segments_that_overlap_say_so_beside_what_else_is_said_of_them(tmp_path: Path) -> None:
    """Either one hid the other."""
    film(tmp_path / "a.mkv", "5.1", "flac")
    rows = [{"path": "a.mkv", "start": start_s, "end": start_s + 1.6} for start_s in (0.0, 1.0)]
    (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "spans": {"min_clip_s": 1.0, "overlapping": "keep"},
        "filters": {"min_short_side_px": 64},
        "run": {"runner": "sequential", "isolate": False},
    }
    curate([str(tmp_path / "list.jsonl")], str(tmp_path / "out"), CurateConfig.model_validate(values))
    reasons = pq.read_table(tmp_path / "out" / "accounting.parquet").column("reason").to_pylist()
    mixed = "its sound of 6 channels is mixed down to stereo"
    assert {mixed, f"{OVERLAPS}; {mixed}"} <= set(reasons)
