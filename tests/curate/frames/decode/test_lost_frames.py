"""Frames that decoders leave out of damaged films, mostly without an error."""

from pathlib import Path

import av
import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from tests.cutting import curated
from tests.media import read_numbers, write_video
from tests.thorough import but

FRAMES, KEY_EVERY = 75, 25
OPTIONS = {
    "libx264": {"g": "25", "bf": "2", "sc_threshold": "0"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8", "g": "25"},
    "libsvtav1": {"preset": "12", "svtav1-params": "keyint=25:pred-struct=1:rc=0"},
    "libx265": {"preset": "ultrafast", "x265-params": "keyint=25:scenecut=0:log-level=0"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "g": "25"},
    "mpeg2video": {"g": "25", "bf": "0"},
}


KEYS = {"ffv1": 12, "prores_ks": 1, "mjpeg": 1}
"""Distance of key frames, where a codec has another."""


def film(path: Path, codec: str) -> Path:
    form = {"prores_ks": "yuv422p10le", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
    return write_video(
        path, (FRAMES,), size=(192, 128), codec=codec, options=OPTIONS.get(codec, {}), pix_fmt=form
    )


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
    but(
        (("a.mp4", "libx264"), ("a.mp4", "libsvtav1"), ("a.mov", "prores_ks"), ("a.avi", "mjpeg")),
        [
            ("a.mp4", "libx264"),
            ("a.mkv", "libx264"),
            ("a.mp4", "libsvtav1"),
            ("a.mp4", "libx265"),
            ("a.webm", "libvpx-vp9"),
            ("a.webm", "libvpx"),
            ("a.mp4", "mpeg2video"),
            ("a.mkv", "ffv1"),
            ("a.mov", "prores_ks"),
            ("a.mov", "mjpeg"),
            ("a.avi", "mjpeg"),
        ],
        (("a.mkv", "libx264"), ("a.mp4", "libx265"), ("a.webm", "libvpx-vp9")),
    ),
)
def test_a_film_whose_first_key_frame_is_lost_begins_with_a_failed_stretch(
    tmp_path: Path, name: str, codec: str
) -> None:
    """Times of later frames stay, and so do their numbers, so that listed segments are exact."""
    path = film(tmp_path / name, codec)
    key, numbers = KEYS.get(codec, KEY_EVERY), read_numbers(path.read_bytes())
    damaged(path, 0, 2 if codec == "libsvtav1" else 4, 20_000)
    failed, kept = rows_of(path)
    assert (failed[0], failed[1], failed[2]) == ("failed", "decode", 0)
    assert failed[3] == pytest.approx(key / 25, abs=0.001)
    assert "its first key frame is damaged, and nothing of its first" in failed[4]
    assert (kept[0], kept[2], kept[3]) == ("kept", failed[3], pytest.approx(3.0, abs=0.001))
    rows = path.with_suffix(".csv")
    for unit, start, end in (("start_time,end_time", 1.2, 2.0), ("start_frame,end_frame", 30, 50)):
        rows.write_text(f"path,{unit}\n{path.name},{start},{end}\n")
        clips = curated(rows, tmp_path / unit, spans={"min_clip_s": 0.2})
        [(record, clip)] = [clip for clip in clips if clip[0].segment is not None]
        assert record.state == "kept", record.reason
        assert read_numbers(clip) == numbers[30:50]


def test_av1_frames_that_come_no_more_are_no_still_picture(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", "libsvtav1")
    damaged(path, 30, 2, 8)
    kept, failed, after = rows_of(path)
    assert [row[0] for row in (kept, failed, after)] == ["kept", "failed", "kept"]
    assert failed[1] == "decode"
    assert (failed[2], failed[3]) == (pytest.approx(29 / 25, abs=1 / 25), pytest.approx(2.0))
    assert (after[2], after[3]) == (pytest.approx(2.0), pytest.approx(3.0))


def without_first(path: Path, codec: str, packets: int) -> Path:
    """Write a film that lacks the first packets of its pictures."""
    with (
        av.open(str(film(path.with_name("whole.mp4"), codec))) as source,
        av.open(str(path), "w") as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in list(source.demux(video=0))[packets:]:
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return path


@pytest.mark.parametrize(
    ("name", "codec"),
    but(
        (("a.mkv", "libx264"), ("a.mp4", "mpeg4")),
        [
            ("a.mkv", "libx264"),
            ("a.mp4", "libx264"),
            ("a.mp4", "mpeg4"),
            ("a.avi", "mpeg4"),
            ("a.mkv", "mpeg2video"),
            ("a.mkv", "libx265"),
            ("a.mkv", "libvpx-vp9"),
        ],
        (("a.avi", "mpeg4"), ("a.mkv", "libx265")),
    ),
)
def test_a_film_that_begins_between_key_frames_begins_with_a_failed_stretch(
    tmp_path: Path, name: str, codec: str
) -> None:
    """As pieces do that were copied out of a film; what players cannot show there is counted."""
    path = without_first(tmp_path / name, codec, 10)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size and not packet.is_discard]
        pts = sorted(packet.pts for packet in packets)
        key_pts = next(packet.pts for packet in packets if packet.is_keyframe)
        lost_s = float((key_pts - pts[0]) * stream.time_base)
    failed, kept = rows_of(path)
    assert (failed[0], failed[1], failed[2]) == ("failed", "decode", 0)
    assert failed[3] == pytest.approx(lost_s, abs=0.002)
    assert "it begins between key frames" in failed[4]
    assert (kept[0], kept[2]) == ("kept", failed[3])


REFRESH = {"x264-params": "keyint=30:intra-refresh=1:scenecut=0:bframes=0"}
OPEN = {"x264-params": "keyint=50:min-keyint=50:scenecut=0:open-gop=1:bframes=2:b-adapt=0"}


def joined_late(path: Path, codec: str, options: dict[str, str] | None = None) -> Path:
    """Write a recording that begins some 0.6 s after a key frame, 1.4 s before the next one."""
    whole = write_video(
        path.with_name(f"whole{path.suffix}"),
        (125,),
        size=(192, 128),
        codec=codec,
        options=options or {**OPTIONS[codec], "g": "50"},
        audio=path.suffix == ".ts",
    )
    if path.suffix == ".ts":
        with av.open(str(whole)) as container:
            video = [packet for packet in container.demux(video=0) if packet.size]
        path.write_bytes(whole.read_bytes()[video[15].pos // 188 * 188 :])
        return path
    stamped, begin = path.suffix not in (".h264", ".m2v"), 0
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate([packet for packet in source.demux(video=0) if packet.size][15:]):
            packet.stream = stream
            if not stamped:
                packet.pts = packet.dts = number
            elif path.suffix == ".avi":  # FFmpeg writes the first packet at 0, and a hole behind it
                begin = packet.dts if number == 0 else begin
                packet.pts, packet.dts = None, packet.dts - begin
            target.mux(packet)
    return path


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    but(
        (("a.ts", "libx264", None), ("a.mpg", "mpeg2video", None), ("a.mp4", "libx264", REFRESH)),
        [
            ("a.ts", "libx264", None),
            ("a.ts", "libx264", OPEN),
            ("a.ts", "libx264", REFRESH),
            ("a.ts", "libx265", {"preset": "ultrafast", "x265-params": "keyint=50:scenecut=0:log-level=0"}),
            ("a.ts", "mpeg2video", None),
            ("a.mpg", "mpeg2video", None),
            ("a.flv", "libx264", None),
            ("a.avi", "libx264", None),
            ("a.mp4", "libx264", REFRESH),
            ("a.asf", "libx264", None),
            ("a.h264", "libx264", None),
            ("a.m2v", "mpeg2video", None),
        ],
        (
            ("a.ts", "libx264", OPEN),
            ("a.ts", "mpeg2video", None),
            ("a.avi", "libx264", None),
            ("a.h264", "libx264", None),
        ),
    ),
)
def test_a_recording_that_was_joined_late_begins_with_a_failed_stretch(
    tmp_path: Path, name: str, codec: str, options: dict[str, str] | None
) -> None:
    """What it lacks lies at its begin, not at its end, and it is not cut off."""
    path = joined_late(tmp_path / name, codec, options)
    failed, kept = rows_of(path)
    assert (failed[0], failed[1], failed[2]) == ("failed", "decode", 0)
    assert failed[4].startswith("it begins between key frames, and nothing of its first")
    assert 0.5 < failed[3] < 2
    assert (kept[0], kept[2]) == ("kept", failed[3])
    assert kept[3] == pytest.approx(4.4, abs=0.11)


REFRESH_B = {"x264-params": "keyint=30:intra-refresh=1:scenecut=0:bframes=2:b-adapt=0"}
OPEN_HEVC = {
    "preset": "ultrafast",
    "x265-params": "keyint=27:min-keyint=27:open-gop=1:bframes=2:b-adapt=0:scenecut=0:log-level=0",
}
MPEG2_OPEN = {"g": "36", "bf": "15", "sc_threshold": "1000000000"}


def without_group(path: Path, codec: str, options: dict[str, str]) -> tuple[Path, list[int]]:
    """Write a film that begins at a packet that counts as key, and return its numbers, lost ones too."""
    whole = write_video(path.with_name("whole.ts"), (125,), size=(192, 128), codec=codec, options=options)
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        video = [packet for packet in source.demux(video=0) if packet.size]
        begin = next(at for at, packet in enumerate(video) if at >= 20 and packet.is_keyframe)
        begin_pts = min(packet.pts for packet in video[begin:])
        for packet in video[begin:]:
            packet.pts, packet.dts, packet.stream = packet.pts - begin_pts, packet.dts - begin_pts, stream
            target.mux(packet)
    return path, read_numbers(whole.read_bytes())[-len(video) + begin :]


def lead_of(path: Path) -> float:
    """Return the seconds from the first picture in a film to the first one that decodes."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stamps = [packet.pts for packet in container.demux(stream) if packet.size]
    with av.open(str(path)) as container:
        if None in stamps:
            return (len(stamps) - len(list(container.decode(video=0)))) / 25
        first = next(container.decode(video=0))
        return float((first.pts - min(stamps)) * first.time_base)


@pytest.mark.parametrize(
    ("name", "codec", "options", "reason"),
    but(
        (
            ("a.ts", "libx264", REFRESH, "it begins within an intra refresh"),
            ("a.mp4", "libx264", OPEN, "it begins with an open group of pictures"),
            ("a.h264", "libx264", REFRESH, "it begins within an intra refresh"),
        ),
        [
            ("a.h264", "libx264", REFRESH, "it begins within an intra refresh"),
            ("a.h264", "libx264", REFRESH_B, "it begins within an intra refresh"),
            ("a.h264", "libx264", OPEN, "it begins with an open group of pictures"),
            ("a.hevc", "libx265", OPEN_HEVC, "it begins with an open group of pictures"),
        ]
        + [
            (name, codec, options, reason)
            for name in ("a.ts", "a.mkv", "a.mp4")
            for codec, options, reason in (
                ("libx264", REFRESH, "it begins within an intra refresh"),
                ("libx264", OPEN, "it begins with an open group of pictures"),
                ("libx265", OPEN_HEVC, "it begins with an open group of pictures"),
                ("mpeg2video", MPEG2_OPEN, "it begins with an open group of pictures"),
            )
        ],
        (
            ("a.h264", "libx264", REFRESH_B, "it begins within an intra refresh"),
            ("a.mkv", "libx264", REFRESH, "it begins within an intra refresh"),
            ("a.mkv", "libx265", OPEN_HEVC, "it begins with an open group of pictures"),
            ("a.mp4", "mpeg2video", MPEG2_OPEN, "it begins with an open group of pictures"),
        ),
    ),
)
def test_what_leads_to_the_first_picture_fails_and_counts(
    tmp_path: Path, name: str, codec: str, options: dict[str, str], reason: str
) -> None:
    """Pieces that begin with an open group or a refresh; lists count from the first picture in the file."""
    path, numbers = without_group(tmp_path / name, codec, options)
    lead_s = lead_of(path)
    assert lead_s > 0
    failed, kept = rows_of(path)
    assert (failed[0], failed[1], failed[2]) == ("failed", "decode", 0)
    assert failed[3] == pytest.approx(lead_s, abs=0.001)
    lead, frames = f"{lead_s:.2f} s", round(lead_s * 25)
    if path.suffix in (".h264", ".hevc"):
        lead = "frame" if frames == 1 else f"{frames} frames"
    assert failed[4] == f"{reason}, and nothing of its first {lead} can be decoded"
    assert (kept[0], kept[2], kept[3]) == ("kept", failed[3], pytest.approx(len(numbers) / 25, abs=0.001))
    rows = path.with_suffix(".csv")
    units = (
        ("start,end", 1.2, 1.8),
        ("start,end", "00:00:01.200", "00:00:01.800"),
        ("start_frame,end_frame", 30, 45),
    )
    for place, (unit, start, end) in enumerate(units):
        rows.write_text(f"path,{unit}\n{path.name},{start},{end}\n")
        clips = curated(rows, tmp_path / str(place), spans={"min_clip_s": 0.2})
        [(record, clip)] = [clip for clip in clips if clip[0].segment is not None]
        assert record.state == "kept", record.reason
        assert read_numbers(clip) == numbers[30:45]


def test_a_recording_that_is_cut_off_says_so(tmp_path: Path) -> None:
    """Its stamps promise pictures of which the last ones cannot be decoded."""
    path = joined_late(tmp_path / "a.ts", "libx264")
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        video = [packet.pos for packet in container.demux(video=0) if packet.size and packet.pos]
    pid = data[video[0] + 1 : video[0] + 3]
    for at in range(video[-40], len(data) - 187, 188):
        if data[at + 1] & 0x1F == pid[0] & 0x1F and data[at + 2] == pid[1]:
            kept = 4 + (data[at + 4] + 1 if data[at + 3] & 0x20 else 0)
            kept += (
                9 + data[at + kept + 8] if data[at + 1] & 0x40 else 0
            )  # the head of a packet, with its stamps
            data[at + kept : at + 188] = b"\xff" * (188 - kept)
    path.write_bytes(data)
    rows = rows_of(path)
    assert rows[0][4].startswith("it begins between key frames")
    assert "the file is cut off: it promises" in rows[-1][4]


@pytest.mark.parametrize(("name", "codec"), [("a.webm", "libvpx-vp9"), ("a.mp4", "libsvtav1")])
def test_an_index_leaves_out_a_sample_without_its_first_key_frame(
    tmp_path: Path, name: str, codec: str
) -> None:
    path = film(tmp_path / name, codec)
    damaged(path, 0, 4 if codec != "libsvtav1" else 2, 400)
    with pytest.raises(SourceError, match="cannot be decoded"):
        probe(path.read_bytes())


@pytest.mark.parametrize("options", [{"g": "1"}, {"g": "12", "slices": "4"}])
def test_wrong_checksums_of_ffv1_are_damage(options: dict[str, str], tmp_path: Path) -> None:
    """FFmpeg takes the slice from the frame before, without an error."""
    path = write_video(
        tmp_path / "a.mkv",
        (FRAMES,),
        size=(192, 128),
        codec="ffv1",
        options={"level": "3", "slicecrc": "1", **options},
    )
    assert [row[0] for row in rows_of(path)] == ["kept"]
    damaged(path, 30, 300, 4)
    (tmp_path / "dataset").rename(tmp_path / "whole")
    kept, failed, after = rows_of(path)
    assert [row[0] for row in (kept, failed, after)] == ["kept", "failed", "kept"]
    assert "1 damaged packet" in failed[4]
    assert (failed[2], failed[3]) == (
        pytest.approx(30 / 25, abs=0.001),
        pytest.approx((31 if options["g"] == "1" else 36) / 25, abs=0.001),
    )


def test_ffv1_without_checksums_goes_on_as_before(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mkv",
        (FRAMES,),
        size=(192, 128),
        codec="ffv1",
        options={"level": "3", "slicecrc": "0", "slices": "4"},
    )
    assert [row[0] for row in rows_of(path)] == ["kept"]
