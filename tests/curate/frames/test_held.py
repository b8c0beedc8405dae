"""A last picture that is held is shown for as long as players show it."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.frame_times import timeline
from tests.curate.foreign.test_foreign_probe import remuxed
from tests.cutting import curated, pictures
from tests.held import HELD, held_film
from tests.media import numbered_frame, read_numbers, write_video
from tests.thorough import but


@pytest.mark.parametrize("name", but(("a.gif", "b-frames.mp4", "a.apng"), tuple(HELD)))
def test_a_last_picture_that_is_held_is_part_of_its_clip(name: str, tmp_path: Path) -> None:
    records = curated(held_film(tmp_path, name), tmp_path / "out", probe={"interlaced": "keep"})
    ((record, clip),) = records
    assert (record.state, record.reason, record.fps) == ("kept", "", 10)
    # With B-frames the last but one in display is the last one of the file, which is held.
    assert (record.start_s, record.end_s) == (0, pytest.approx(4.85, abs=0.0505))
    assert len(pictures(clip)) == record.frames == round(10 * record.end_s)


def test_a_last_picture_that_is_held_for_longer_is_a_gap(tmp_path: Path) -> None:
    film = held_film(tmp_path, "b-frames.mp4", held=60)
    options = {"probe": {"interlaced": "keep"}, "spans": {"min_clip_s": 1}}
    kept, gap = (record for record, _ in curated(film, tmp_path / "out", **options))
    assert (kept.state, kept.end_s, kept.frames) == ("kept", pytest.approx(1.9), 19)
    assert (gap.state, gap.stage) == ("filtered", "gaps")
    assert (gap.start_s, gap.end_s) == (pytest.approx(1.9), pytest.approx(7.8))


def test_a_film_that_is_cut_off_is_not_taken_for_one_whose_last_picture_is_held(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", (100,), size=(96, 64), options={"g": "10"})
    path.write_bytes(remuxed(path)[: path.stat().st_size // 2])
    *_, (record, _) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert record.state == "failed"
    assert record.reason.startswith("the file is cut off: it promises 4.00 s and holds ")


def test_a_last_frame_of_avi_that_states_half_a_slot_is_shown(tmp_path: Path) -> None:
    """FFmpeg's muxer takes ticks of half a frame for VP9 and AV1, and each frame states one of them."""
    path = tmp_path / "a.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=60, options={"qscale": "3"})
        stream.width, stream.height, stream.pix_fmt = 160, 128, "yuv420p"
        for number in range(60):
            frame = av.VideoFrame.from_ndarray(numbered_frame(number, 160, 128), "rgb24")
            frame = frame.reformat(format="yuv420p")
            frame.pts, frame.time_base = 2 * number + 2 * (number > 0), Fraction(1, 60)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.fps) == ("kept", 30)
    assert sorted(set(read_numbers(clip))) == list(range(60))


def test_a_last_frame_of_less_than_half_a_slot_is_shown_as_long_as_others(tmp_path: Path) -> None:
    gaps = np.random.default_rng(3).choice([1.0, 1.25, 2.0], 58)
    path = tmp_path / "film.mp4"
    times_s = np.cumsum([0, *gaps, 1.25]) / 60
    write_video(path, (60,), times_s=times_s, rate=60, options={"bf": "0"})
    data = bytearray(path.read_bytes())
    entries = data.index(b"stts") + 8
    last = entries + 4 + 8 * (int.from_bytes(data[entries : entries + 4], "big") - 1)
    assert data[last : last + 4] == (1).to_bytes(4, "big")
    data[last + 4 : last + 8] = (450).to_bytes(4, "big")  # of 90 000 a second
    path.write_bytes(data)
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert (record.state, record.reason, read_numbers(clip)[-1]) == ("kept", "", 59)
    assert record.duration_s == pytest.approx(times_s[-1] + 0.005, abs=0.0201)


def test_a_last_frame_that_would_be_shown_too_long_is_said_to_have_no_slot() -> None:
    times_s = np.cumsum([0, *[1001 / 24000] * 187, *[1001 / 30000] * 12])
    pts = np.rint(90000 * times_s).astype(int).tolist()
    durations = [*np.diff(pts).tolist(), 450]
    line = timeline(pts, Fraction(1, 90000), 450, None, (), 60, durations=durations)
    assert line.clip_frames(0, 200)[-1] == 198
    assert line.left_out(0, 200) == "the last frame, which lasts 5 ms, has no slot"
