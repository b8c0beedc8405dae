"""Films of 24 frames per second in 60 fields: their own frames come back, and no other film is touched."""

import io
import itertools
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.frame_times import FrameTimes, source_frames, timeline
from reelweave.curate.frames.source import open_video
from reelweave.curate.frames.telecine import FieldDifferences, Pulldown, invert_pulldown
from tests.cutting import curated
from tests.media import read_numbers
from tests.telecine import NTSC, fields_of, woven
from tests.thorough import but

FILM = NTSC * 4 / 5


def frames_of(clip: bytes) -> list[np.ndarray]:
    with av.open(io.BytesIO(clip)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


def is_combed(picture: np.ndarray) -> bool:
    """Whether lines differ from those of the other field more than from those of their own."""
    rows = picture.astype(np.int16)
    return bool(np.abs(rows[2:] - rows[1:-1]).mean() > 1.2 * np.abs(rows[2:] - rows[:-2]).mean())


def pulldown_of(path: Path) -> Pulldown | None:
    with path.open("rb") as file, open_video(file) as (container, stream):
        fields = FieldDifferences(NTSC)
        for frame in Decoder(container, stream).frames():
            fields.push(frame)
        return fields.pulldown()


@pytest.mark.parametrize(
    ("name", "order", "options"),
    [
        ("a.mpg", "tff", {}),
        ("b.mkv", "bff", {"codec": "libx264", "flagged": False}),  # as careless conversions leave it
    ],
)
def test_a_telecined_film_gets_its_own_frames_back(name: str, order: str, options, tmp_path: Path) -> None:
    path = woven(tmp_path / name, fields_of(96, order), scenes=(49,), **options)
    records = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert [record.state for record, _ in records] == ["kept", "kept"]
    assert [read_numbers(clip) for _, clip in records] == [list(range(49)), list(range(49, 96))]
    for record, _ in records:
        assert record.fps == pytest.approx(float(FILM))
        assert record.end_s - record.start_s == pytest.approx(record.frames / FILM, abs=1 / 60)


def test_a_telecined_recording_that_begins_between_key_frames_gets_its_own_frames_back(
    tmp_path: Path,
) -> None:
    path = woven(tmp_path / "a.ts", fields_of(96), scenes=(96,))
    with av.open(str(path)) as container:
        offsets = [packet.pos for packet in container.demux(video=0) if packet.size and packet.pos]
    path.write_bytes(path.read_bytes()[offsets[2] // 188 * 188 :])
    (lost, _), (kept, clip) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert "between key frames" in lost.reason
    assert kept.fps == pytest.approx(float(FILM))
    numbers = read_numbers(clip)
    assert numbers == list(range(numbers[0], 96))


@pytest.mark.parametrize(
    ("order", "first"),
    but(
        (("tff", 3), ("bff", 2)),
        itertools.product(("tff", "bff"), range(5)),
        (("tff", 0), ("tff", 1), ("bff", 4)),
    ),
)
def test_a_film_may_begin_anywhere_in_its_cadence(order: str, first: int, tmp_path: Path) -> None:
    """A first frame of two pictures is none of a clip, or one of them alone."""
    path = woven(tmp_path / "a.mkv", fields_of(96, order)[first:], order=order, codec="libx264")
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.5})
    assert record.fps == pytest.approx(float(FILM))
    numbers = read_numbers(clip)
    assert numbers == list(range(numbers[0], 96))
    assert numbers[0] <= 3
    (sharp, *_) = frames_of(clip)
    assert not is_combed(sharp)


@pytest.mark.parametrize(
    "fields",
    [
        [(2 * number, 2 * number + 1) for number in range(60)],  # 60 fields, each of its own moment
        [(number, number) for number in range(60)],
        [(number * 4 // 5,) * 2 for number in range(60)],  # whole frames that repeat
        fields_of(24, cadence=(5,)),  # 12 drawings per second
        [*fields_of(40), *((number, number) for number in range(40, 60))],  # telecined for a part alone
    ],
)
def test_films_that_are_not_telecined_throughout_stay_as_they_are(fields, tmp_path: Path) -> None:
    assert pulldown_of(woven(tmp_path / "a.mpg", fields)) is None


def test_the_cadence_may_change_where_a_telecined_film_was_edited(tmp_path: Path) -> None:
    fields = fields_of(120)
    edited = [*fields[:63], *fields[71:]]
    found = pulldown_of(woven(tmp_path / "a.mpg", edited))
    assert found is not None
    assert found.order == "tff"
    before, after = (range(2, 63, 5), range(7 * 5 + 37 - 8, len(edited), 5))
    assert set(found.repeats) == {*before, *after}


def constant(frames: int, rate: Fraction) -> FrameTimes:
    return timeline(list(range(frames)), 1 / rate, None, rate, (), 60)


@pytest.mark.parametrize("phase", range(5))
def test_each_frame_of_the_film_is_shown_once_wherever_its_cadence_begins(phase: int) -> None:
    repeats = tuple(range(phase, 100, 5))
    line = invert_pulldown(constant(100, NTSC), Pulldown("tff", repeats))
    assert line.rate == FILM
    assert (np.diff(line.times_s) > 0).all()
    assert line.times_s[-1] == constant(100, NTSC).times_s[-1]
    shown = source_frames(line.times_s, 0, 100, line.rate).tolist()
    film = [frame for frame in range(100) if frame not in repeats]
    assert len(shown) == 80
    # The beginning may hold a part of a cycle.
    assert shown[4:] == film[-76:]
    # No frame is shown further from its time than the half of one.
    assert np.abs(line.times_s[film] - np.array(film) / float(NTSC)).max() <= 0.5 / float(NTSC) + 1e-9


def test_a_film_that_asks_players_to_repeat_its_fields_has_its_own_frames_anyway() -> None:
    """Soft pulldown: whole frames that last two and three fields by turns."""
    fields = np.cumsum([0, *(2 + frame % 2 for frame in range(719))])
    line = timeline((fields * 3003 // 2).tolist(), Fraction(1, 90000), None, NTSC, (), 60)
    assert (line.rate, line.constant) == (FILM, True)
    assert source_frames(line.times_s, 0, 720, line.rate).tolist() == list(range(720))
