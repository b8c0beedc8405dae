"""Edit lists that FFmpeg does not play as they are meant are refused; those that it knows are played."""

import re
import struct
from pathlib import Path

import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from tests.curate.frames.container.test_side_data import SHORT, box
from tests.cutting import curated
from tests.media import read_numbers, write_video
from tests.player import cut_by_copy, numbers_shown
from tests.thorough import beyond

EMPTY = -1.0
Edit = tuple[float, float, int]
"""Seconds, media time in seconds or EMPTY, and speed."""


def found(data: bytes, kind: bytes, begin: int, end: int) -> list[tuple[int, int]]:
    """Return begin and end of the boxes of a kind."""
    places = []
    while begin < end:
        size = int.from_bytes(data[begin : begin + 4], "big")
        if data[begin + 4 : begin + 8] == kind:
            places.append((begin, begin + size))
        begin += size
    return places


def edited(path: Path, edits: dict[int, list[Edit]], version: int = 0) -> Path:
    """Give tracks of a film whose index comes last another edit list."""
    film = path.read_bytes()
    ((begin, end),) = found(film, b"moov", 0, len(film))
    index = film[begin:end]
    ((header, _),) = found(index, b"mvhd", 8, len(index))
    scale = int.from_bytes(index[header + 20 : header + 24], "big")
    parts, at = [], 8
    for number, (first, last) in enumerate(found(index, b"trak", 8, len(index))):
        track = index[first:last]
        if number in edits:
            ((media, media_end),) = found(track, b"mdia", 8, len(track))
            ((head, _),) = found(track, b"mdhd", media + 8, media_end)
            ticks = int.from_bytes(track[head + 20 : head + 24], "big")
            form = ">QqHH" if version else ">IiHH"
            table = struct.pack(">BxxxI", version, len(edits[number])) + b"".join(
                struct.pack(
                    form, round(lasts * scale), -1 if begins == EMPTY else round(begins * ticks), speed, 0
                )
                for lasts, begins, speed in edits[number]
            )
            for old_first, old_last in found(track, b"edts", 8, len(track)):
                track = track[:old_first] + track[old_last:]
            ((_, after),) = found(track, b"tkhd", 8, len(track))
            track = box(b"trak", track[8:after] + box(b"edts", box(b"elst", table)) + track[after:])
        parts += [index[at:first], track]
        at = last
    path.write_bytes(film[:begin] + box(b"moov", b"".join(parts) + index[at:]) + film[end:])
    return path


def film(path: Path, edits: dict[int, list[Edit]], version: int = 0) -> Path:
    return edited(write_video(path, (100,), audio=True, options={"bf": "0", "g": "10"}), edits, version)


@pytest.mark.parametrize(
    ("edits", "version"),
    beyond(
        2,
        [
            ([(1, 1, 1), (1, EMPTY, 1), (1, 2, 1)], 0),
            ([(1, 1, 1), (1, 2, 0), (1, 2, 1)], 0),
            ([(2, 1, 1), (1, EMPTY, 1)], 1),
            ([(1, 1, 2)], 0),
        ],
    ),
)
def test_pictures_with_pauses_holds_and_speeds_are_refused(
    edits: list[Edit], version: int, tmp_path: Path
) -> None:
    path = film(tmp_path / "a.mp4", {0: edits}, version)
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.stage) == ("failed", "probe")
    assert record.reason.startswith("has an edit list that pauses")
    with pytest.raises(SourceError, match="has an edit list that pauses"):
        probe(path.read_bytes())


def test_edits_behind_all_frames_are_refused_in_words(tmp_path: Path) -> None:
    """Recorders of live streams count them on the clock of the stream."""
    path = film(tmp_path / "a.mp4", {0: [(4, 3600, 1)]})
    ((record, _),) = curated(path, tmp_path / "out", **SHORT)
    assert record.reason.startswith("has an edit list that begins behind its last frame")
    path = film(tmp_path / "b.mp4", {1: [(4, 3600, 1)]})
    ((record, clip),) = curated(path, tmp_path / "out b", **SHORT)
    assert record.audio.startswith("none (the edit list of its sound begins behind its last frame")
    assert read_numbers(clip) == list(range(100))


def test_sound_that_pauses_is_left_out_in_words(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", {1: [(2, 0, 1), (1, EMPTY, 1), (1, 1, 1)]})
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.state == "kept"
    assert record.audio.startswith("none (the edit list of its sound pauses")
    assert read_numbers(clip) == list(range(100))
    assert probe(path.read_bytes()).audio == "none"


@pytest.mark.parametrize(
    ("edits", "first", "last"),
    beyond(
        1, [([(1, EMPTY, 1), (2, 1, 1)], 25, 75), ([(2, 1, 0)], 25, 75), ([(1, 1, 1), (0, EMPTY, 1)], 25, 50)]
    ),
)
def test_edits_that_ffmpeg_knows_are_played(edits: list[Edit], first: int, last: int, tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", {0: edits})
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.state == "kept", record.reason
    assert read_numbers(clip) == list(range(first, last))


@pytest.mark.parametrize("begins_late", [False, True])
def test_a_track_whose_edits_last_no_time_is_refused_or_left_out_in_words(
    begins_late: bool, tmp_path: Path
) -> None:
    """FFmpeg shows nothing of it; in fragmented films, where such an edit lasts to the end, it plays all."""
    none = [(1, EMPTY, 1), (0, 0, 1)] if begins_late else [(0, 0, 1)]
    ((record, _),) = curated(film(tmp_path / "a.mp4", {0: none}), tmp_path / "pictures", **SHORT)
    assert record.reason.startswith("has an edit list that lasts 0 s, so that nothing of it is shown")
    ((record, _),) = curated(film(tmp_path / "b.mp4", {1: none}), tmp_path / "sound", **SHORT)
    assert (record.state, record.frames) == ("kept", 100)
    assert record.audio.startswith("none (the edit list of its sound lasts 0 s")


def test_pictures_that_an_edit_list_of_fragments_leaves_out_are_kept_in_words(tmp_path: Path) -> None:
    """Pieces by `ffmpeg -ss T -c copy` begin at a key frame; browsers skip what lies before T, FFmpeg does not."""
    source = write_video(tmp_path / "a.mp4", (100,), options={"g": "50", "bf": "2"})
    flags = "-movflags frag_keyframe+empty_moov+delay_moov"
    path = cut_by_copy(source, tmp_path / "piece.mp4", "-ss 0.8", flags)
    assert path is not None
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.reason == "the first 0.80 s, which an edit list leaves out, are kept, as by FFmpeg"
    assert read_numbers(clip) == list(range(100))


def test_fragments_that_step_back_and_are_hidden_are_said(tmp_path: Path) -> None:
    """FFmpeg hides the first fragment whose pictures begin before the end of those before it."""
    source = write_video(tmp_path / "a.mp4", (100,), options={"g": "25", "bf": "0"})
    flags = "-movflags frag_keyframe+empty_moov+default_base_moof"
    path = cut_by_copy(source, tmp_path / "back.mp4", "-ss 0", flags)
    film = bytearray(path.read_bytes())
    times = [at.start() for at in re.finditer(b"tfdt", film)]
    for at, begin in zip(times[2:], times, strict=False):  # the last two begin where the first two do
        film[at : at + 16] = film[begin : begin + 16]
    path.write_bytes(film)
    (record, clip), *others = curated(path, tmp_path / "out", **SHORT)
    assert "25 pictures that an edit list, or fragments that step back, hide are left out" in record.reason
    assert len(read_numbers(clip)) + sum(len(read_numbers(data)) for _, data in others) <= 75


@pytest.mark.parametrize(("codec", "b_frames"), beyond(1, [("mpeg4", 2), ("mpeg4", 0), ("libx264", 2)]))
def test_a_piece_whose_key_frame_is_hidden_is_whole(codec: str, b_frames: int, tmp_path: Path) -> None:
    """Its first picture shown refers to one that is there, and that its edit list hides."""
    options = {"g": "12", "bf": str(b_frames)}
    source = write_video(tmp_path / "a.mp4", (100,), codec=codec, options=options)
    path = cut_by_copy(source, tmp_path / "piece.mp4", "-ss 1.3")
    assert path is not None
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert (record.state, record.reason) == ("kept", "")
    assert read_numbers(clip) == numbers_shown(path)
