"""Edit lists of several entries, negative steps, and sound that FFmpeg does not read: heard in time, and said."""

import io
import re
import struct
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.curate.foreign.probe import probe
from tests.curate.frames.container.test_edit_list import Edit, edited
from tests.curate.frames.container.test_side_data import SHORT, box
from tests.curate.frames.test_further import with_second_entry
from tests.cutting import curated
from tests.media import read_numbers, sound_first, write_video
from tests.player import ffmpeg, numbers_shown
from tests.thorough import beyond

BEEPS = "aevalsrc='0.6*sin(2000*PI*t)*(between(t,1,1.04)+between(t,3.2,3.24))':s=48000:d=4"
PRIMING_S, REORDERED_S = 1024 / 48000, 0.08
"""Media times at which sound, and pictures with two B-frames, begin."""


def film(path: Path, edits: dict[int, list[Edit]], b_frames: int = 0) -> Path:
    """Numbered frames, a key frame each second, beside beeps at 1 and 3.2 s."""
    options = {"bf": str(b_frames), "g": "25"}
    pictures = write_video(path.with_stem("pictures"), (100,), options=options)
    ffmpeg(f"-i {pictures} -f lavfi -i {BEEPS} -c:v copy -c:a aac -y {path}".split())
    return edited(path, edits)


def beeps(data: bytes) -> list[float]:
    """When beeps begin in a clip, in seconds."""
    with av.open(io.BytesIO(data)) as container:
        blocks = [(frame.time or 0.0, frame.to_ndarray().mean(0)) for frame in container.decode(audio=0)]
    loud = [
        begin_s + at / 48000
        for begin_s, samples in blocks
        for at in np.flatnonzero(np.abs(samples) > 0.2).tolist()
    ]
    return [at for at, before in zip(loud, [-1.0, *loud], strict=False) if at - before > 0.1]


def test_sound_alone_that_skips_is_heard_where_players_play_it(tmp_path: Path) -> None:
    """FFmpeg hands out a second of hidden sound before each further edit, which is no step of its clock."""
    path = film(tmp_path / "a.mp4", {1: [(2, 0, 1), (2, 3, 1)]})
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.reason == ""
    assert np.allclose(beeps(clip), [1 + PRIMING_S, 2.2 + PRIMING_S], atol=0.01)


@pytest.mark.parametrize(
    ("edits", "b_frames", "hidden"),
    beyond(
        3,
        [
            ([(2, 0, 1), (2, 2, 1)], 2, 0),  # nothing is hidden, although some of it comes twice
            ([(1, 0, 1), (1, 2, 1)], 0, 50),  # no picture comes hidden
            ([(1.4, 0, 1), (1, 2.6, 1)], 2, 40),
            ([(1, 2.2, 1), (1, 0.4, 1)], 0, 50),
            ([(1, 0, 1), (1, 0, 1)], 2, 75),
        ],
    ),
)
def test_as_many_pictures_are_said_to_be_hidden_as_nobody_sees(
    edits: list[Edit], b_frames: int, hidden: int, tmp_path: Path
) -> None:
    later = [(lasts, begins + REORDERED_S * (b_frames > 0), speed) for lasts, begins, speed in edits]
    path = film(tmp_path / "a.mp4", {0: later, 1: edits}, b_frames)
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert 100 - len(set(numbers_shown(path))) == hidden
    words = (
        f"{hidden} pictures that an edit list, or fragments that step back, hide are left out, as by FFmpeg"
    )
    assert record.reason == (words if hidden else "")
    assert len(set(numbers_shown(path)) ^ set(read_numbers(clip))) <= 1


def with_steps(data: bytes, steps: list[tuple[int, int]]) -> bytes:
    """The film, whose index comes last, with another table of steps for its first track."""
    places, begin = [], 0
    for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stts"):
        while data[begin + 4 : begin + 8] != name:
            begin += int.from_bytes(data[begin : begin + 4], "big")
        places.append(begin)
        begin += 8
    at = places.pop()
    end = at + int.from_bytes(data[at : at + 4], "big")
    table = box(
        b"stts", struct.pack(">II", 0, len(steps)) + b"".join(struct.pack(">Ii", *step) for step in steps)
    )
    changed = bytearray(data[:at] + table + data[end:])
    for place in places:
        size = int.from_bytes(data[place : place + 4], "big") + len(table) - (end - at)
        changed[place : place + 4] = size.to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("b_frames", [0, 2])
def test_a_step_back_that_ffmpeg_takes_for_hours_is_said(b_frames: int, tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mp4", (100,), options={"bf": str(b_frames)})
    ticks = 12800 // 25
    (path := tmp_path / "a.mp4").write_bytes(
        with_steps(whole.read_bytes(), [(50, ticks), (1, -2_000_000), (49, ticks)])
    )
    records = [record for record, _ in curated(path, tmp_path / "out", **SHORT)]
    words = "pictures behind a step of the clock by -2000000 ticks, which FFmpeg takes for hours ahead, are left out"
    assert re.fullmatch(rf"\d+ {words}", records[-1].reason)
    assert 100 - int(records[-1].reason.split()[0]) == len(numbers_shown(path))
    assert not any("cut off" in record.reason for record in records)
    found = probe(path.read_bytes())
    assert found.duration_s <= 4.1
    assert found.rest


def test_a_last_picture_lasts_no_longer_than_its_edit_list_in_an_index(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mp4", (100,), options={"bf": "0"})
    ticks = 12800 // 25
    film = with_steps(whole.read_bytes(), [(99, ticks), (1, 60 * 12800)])
    assert probe(film).duration_s == pytest.approx(4, abs=0.05)


@pytest.mark.parametrize(("kind", "name"), [(b".mp3", ".mp3"), (b"enca", "encrypted")])
def test_sound_of_another_sample_entry_is_said(kind: bytes, name: str, tmp_path: Path) -> None:
    """FFmpeg reads that of the first kind alone; its sound does not end before the pictures."""
    whole = sound_first(write_video(tmp_path / "whole.mp4", (100,), audio=True))
    (path := tmp_path / "a.mp4").write_bytes(with_second_entry(whole.read_bytes(), kind))
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.reason == f"sound stored as {name}, behind that as mp4a, is left out, as by FFmpeg"
    assert read_numbers(clip) == list(range(100))


def test_sound_of_which_nothing_can_be_read_does_not_end_before_the_pictures(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.ts", (100,), audio=True)
    packets = [bytearray(whole.read_bytes()[at : at + 188]) for at in range(0, whole.stat().st_size, 188)]
    for packet in packets:
        if int.from_bytes(packet[1:3], "big") & 0x1FFF == 0x101:
            begin = 5 + packet[4] if packet[3] & 0x20 else 4
            begin += 9 + packet[begin + 8] if packet[1] & 0x40 else 0
            packet[begin:] = bytes(188 - begin)
    (path := tmp_path / "a.ts").write_bytes(b"".join(packets))
    ((record, clip),) = curated(path, tmp_path / "out", **SHORT)
    assert record.reason == "its source announces sound and holds none that can be read"
    assert record.audio.startswith("none (its sound states no sample rate")
    assert read_numbers(clip) == list(range(100))


@pytest.mark.parametrize(
    ("before", "behind"),
    beyond(
        2, [("-map 0:v", ""), ("-c:a mp2", "-c:a aac"), ("-c:a aac", "-c:a ac3"), ("-c:a ac3", "-c:a mp2")]
    ),
)
def test_sound_of_ts_is_whole_that_begins_behind_its_map_or_changes_its_codec(
    before: str, behind: str, tmp_path: Path
) -> None:
    """Its header then states no rate, or one decoder refuses half of its packets."""
    source, pieces = film(tmp_path / "a.mp4", {}), []
    for begin, words in ((0, f"-t 2 -c:v copy {before}"), (2, f"-c:v copy {behind} -output_ts_offset 2")):
        piece = tmp_path / f"{begin}.ts"
        ffmpeg([*f"-ss {begin} -i {source} {words} -muxdelay 0 -muxpreload 0 -y".split(), str(piece)])
        pieces.append(piece.read_bytes())
    (path := tmp_path / "joined.ts").write_bytes(b"".join(pieces))
    records = curated(path, tmp_path / "out", **SHORT)
    heard = [record.start_s + at for record, clip in records for at in beeps(clip)]
    assert [number for _, clip in records for number in read_numbers(clip)] == list(range(100))
    assert np.allclose(heard, [3.2] if "map" in before else [1.0, 3.2], atol=0.05)


def test_pictures_whose_pid_goes_on_with_sound_end_there(tmp_path: Path) -> None:
    source, pieces = film(tmp_path / "a.mp4", {}), []
    for begin, pids in ((0, "-streamid 0:300 -streamid 1:301"), (2, "-streamid 0:301 -streamid 1:300")):
        piece, later = tmp_path / f"{begin}.ts", f"-output_ts_offset {begin} -muxdelay 0 -muxpreload 0"
        ffmpeg([*f"-ss {begin} -t 2 -i {source} -c copy {pids} {later} -y".split(), str(piece)])
        pieces.append(piece.read_bytes())
    (path := tmp_path / "joined.ts").write_bytes(b"".join(pieces))
    (kept, clip), (behind, _) = curated(path, tmp_path / "out", **SHORT)
    assert read_numbers(clip) == list(
        range(48)
    )  # FFmpeg loses the picture behind these, to which the last one refers
    assert (behind.state, round(behind.start_s, 3), kept.reason) == ("failed", 1.92, "")
    (at,) = re.findall(r"holds sound, .*`tail -c \+(\d+) FILE`", behind.reason)
    (rest := tmp_path / "rest.ts").write_bytes(path.read_bytes()[int(at) - 1 :])
    pictures = [
        number for _, data in curated(rest, tmp_path / "rest", **SHORT) for number in read_numbers(data)
    ]
    assert sorted(set(pictures)) == list(range(50, 100))


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
def test_an_index_names_no_sound_that_is_announced_alone(suffix: str, tmp_path: Path) -> None:
    pictures = write_video(tmp_path / "pictures.mp4", (50,))
    words = f"-i {pictures} -f lavfi -i {BEEPS} -c:v copy -c:a aac -bsf:a noise=drop=1 -y"
    ffmpeg([*words.split(), str(tmp_path / f"a.{suffix}")])
    assert probe((tmp_path / f"a.{suffix}").read_bytes()).audio == "none"


def test_an_index_names_codecs_and_no_decoders(tmp_path: Path) -> None:
    pictures = write_video(tmp_path / "pictures.mp4", (50,))
    words = f"-i {pictures} -f lavfi -i {BEEPS} -c:v copy -c:a libmp3lame -y {tmp_path / 'a.mkv'}"
    ffmpeg(words.split())
    assert probe((tmp_path / "a.mkv").read_bytes()).audio == "mp3"


@pytest.mark.parametrize("b_frames", [0, 2])
def test_an_edit_that_lasts_longer_than_the_rest_of_its_track_is_not_cut_off(
    b_frames: int, tmp_path: Path
) -> None:
    begins = 3.6 + REORDERED_S * (b_frames > 0)
    path = film(tmp_path / "a.mp4", {0: [(2, begins, 1)]}, b_frames)
    ((record, clip),) = curated(path, tmp_path / "out", spans={"min_clip_s": 0.2})
    assert (record.state, read_numbers(clip)) == ("kept", list(range(90, 100)))
