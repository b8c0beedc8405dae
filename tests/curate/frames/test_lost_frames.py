"""Frames that decoders leave out of damaged films, mostly without an error."""

from pathlib import Path

import av
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from tests.media import write_video

FRAMES, KEY_EVERY = 75, 25
OPTIONS = {
    "libsvtav1": {"preset": "12", "svtav1-params": "keyint=25:pred-struct=1:rc=0"},
    "libx265": {"preset": "ultrafast", "x265-params": "keyint=25:scenecut=0:log-level=0"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "g": "25"},
    "mpeg2video": {"g": "25", "bf": "0"},
}


def film(path: Path, codec: str) -> Path:
    return write_video(path, (FRAMES,), size=(192, 128), codec=codec, options=OPTIONS[codec])


def damaged(path: Path, number: int, first: int, size: int) -> None:
    """Spoil bytes of a packet of video."""
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][number]
    at = data.find(bytes(packet)[:48])
    assert at > 0
    for offset in range(at + first, at + min(packet.size, first + size)):
        data[offset] ^= 0xA5
    path.write_bytes(data)


def rows_of(film: Path) -> list[tuple[str, str, float | None, float | None, str]]:
    config = CurateConfig.model_validate(
        {
            "run": {"runner": "sequential", "isolate": False},
            "spans": {"min_clip_s": 0.2},
            "shots": {"detector": "fixed"},
            "dedup": {"exact": {"enabled": False}, "perceptual": {"enabled": False}},
        }
    )
    out = film.parent / "dataset"
    curate([str(film)], str(out), config)
    table = open_dataset(out).accounting.to_pylist()
    return [(row["state"], row["stage"], row["start_s"], row["end_s"], row["reason"]) for row in table]


@pytest.mark.parametrize(
    ("name", "codec"),
    [("a.mp4", "libsvtav1"), ("a.mp4", "libx265"), ("a.webm", "libvpx-vp9"), ("a.mp4", "mpeg2video")],
)
def test_a_film_whose_first_key_frame_is_damaged_fails_in_words(
    tmp_path: Path, name: str, codec: str
) -> None:
    """Its times would count from the second key frame, so that listed segments would get other frames."""
    path = film(tmp_path / name, codec)
    damaged(path, 0, 4 if codec != "libsvtav1" else 2, 400)
    [(state, _, start_s, _, reason)] = rows_of(path)
    assert (state, start_s) == ("failed", None)
    assert "its first key frame is damaged, and nothing of its first 1.00 s can be decoded" in reason


def test_av1_frames_that_come_no_more_are_no_still_picture(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libsvtav1")
    damaged(path, 30, 2, 8)
    kept, failed, after = rows_of(path)
    assert [row[0] for row in (kept, failed, after)] == ["kept", "failed", "kept"]
    assert failed[1] == "decode"
    assert (failed[2], failed[3]) == (pytest.approx(29 / 25, abs=1 / 25), pytest.approx(2.0))
    assert (after[2], after[3]) == (pytest.approx(2.0), pytest.approx(3.0))


def test_a_recording_that_begins_within_a_group_of_pictures_is_kept(tmp_path: Path) -> None:
    """Of a stream nobody promises that it begins with a key frame."""
    path = tmp_path / "a.ts"
    with (
        av.open(str(film(tmp_path / "whole.mp4", "mpeg2video"))) as source,
        av.open(str(path), "w") as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in list(source.demux(video=0))[10:]:
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    states = [row[0] for row in rows_of(path)]
    assert "kept" in states
    assert not any("key frame" in row[4] for row in rows_of(path))
