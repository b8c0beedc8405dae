"""Clips encoded while their source is scanned are those of a second pass, byte for byte."""

import hashlib
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.frame import VideoFrame

from reelweave.curate.config import CurateConfig, config_digest
from reelweave.curate.cut.clip import CutError
from reelweave.curate.cut.encode import ClipEncoder
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import SourceSummary
from reelweave.curate.shots.spans import spans
from reelweave.curate.source_pass.cut_source import CutSource
from reelweave.curate.source_pass.scan import scan
from reelweave.curate.sources.inputs import list_sources
from reelweave.loader.storage import open_storage
from tests.filter_footage import encode, pan, still
from tests.media import CORPUS, NO_CORPUS, sound_first, write_video
from tests.thorough import beyond, but, thorough

SHORT: dict[str, Any] = {"spans": {"min_clip_s": 0.5, "max_clip_s": 2.0}}


def config(ahead_mb: float, **changes: Any) -> CurateConfig:
    cut = {**changes.pop("cut", {}), "ahead_mb": ahead_mb}
    return CurateConfig.model_validate({**SHORT, **changes, "cut": cut})


def curated(path: Path, settings: CurateConfig, out: Path) -> tuple[SourceSummary, dict[str, str]]:
    """Summary of a source without its cost, and the digests of all its files."""
    stage = settings.source_stage()
    work = CutSource(stage, settings.storage, Ledger(open_storage(out)), config_digest(stage))
    (source,) = list_sources([str(path)], settings.storage)
    summary = replace(work(source), cpu_s=None)
    files = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in out.rglob("*") if one.is_file()
    }
    return summary, files


def ready(path: Path, settings: CurateConfig) -> list[bool]:
    """Of each clip of a source, whether it was encoded ahead."""
    stage = settings.source_stage()
    with path.open("rb") as file, scan(file, stage) as seen:
        found = spans(seen.timeline, seen.transitions, seen.probe.promised_s, stage.spans)
        return [seen.ahead is not None and one in seen.ahead for one in found if one.fault is None]


def jumpy(frames: int) -> list[float]:
    return [number / 25 + (0.03 if number % 7 == 3 else 0) for number in range(frames)]


def halting(frames: int) -> list[float]:
    return [number / 25 + (0.4 if number > 30 else 0) for number in range(frames)]


def lacking(frames: int) -> list[float]:
    return [(number + (number > 37)) / 25 for number in range(frames)]


OPEN_GROUPS: dict[str, Any] = {
    "codec": "libx265",
    "options": {
        "preset": "ultrafast",
        "x265-params": "keyint=20:min-keyint=20:scenecut=0:open-gop=1:bframes=4:pools=none:log-level=none",
    },
}
_OPEN = "smart cuts of 10-bit HEVC in open groups"
SOURCES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], bool]] = {
    "a few shots": ("a.mp4", (40, 30, 61), {}, True),
    "a shot that is too short among others": ("a.mp4", (40, 6, 60), {}, True),
    "long shots, of which the last parts give way": ("a.mp4", (55, 110, 130), {}, True),
    "shorter than what it looks ahead": ("a.mp4", (15,), {}, True),
    "B-frames and sound": ("a.mp4", (60, 70), {"audio": True, "options": {"bf": "3"}}, True),
    "10-bit": ("a.mp4", (50, 50), {"pix_fmt": "yuv420p10le"}, True),
    "29.97 with millisecond ticks": ("a.mkv", (50, 50), {"rate": Fraction(30000, 1001)}, True),
    "variable rate": ("a.mp4", (50, 50), {"times_s": jumpy(100)}, True),
    "one frame is missing": ("a.mp4", (50, 50), {"times_s": lacking(100)}, True),
    "half a second without a frame": ("a.mp4", (50, 50), {"times_s": halting(100)}, True),
    "60 frames per second": ("a.mp4", (100, 100), {"rate": 60}, True),
    "AVI, which stores no times": ("a.avi", (50, 50), {"options": {"bf": "2"}}, True),
    "smart cuts of groups of 20": (
        "a.mp4",
        (55, 75, 130),
        {"audio": True, "options": {"g": "20", "bf": "3"}, "cut": {"mode": "smart"}},
        True,
    ),
    "smart cuts of a transport stream": (
        "a.ts",
        (55, 75),
        {"start_s": 9.0, "options": {"g": "20", "bf": "3"}, "cut": {"mode": "smart"}},
        True,
    ),
    _OPEN: (
        "a.mp4",
        (55, 75, 130),
        {**OPEN_GROUPS, "pix_fmt": "yuv420p10le", "cut": {"mode": "smart", "max_bits": 10}},
        True,
    ),
    "smart cuts of 8-bit HEVC in open groups": (
        "a.ts",
        (55, 75, 130),
        {**OPEN_GROUPS, "start_s": 9.0, "cut": {"mode": "smart", "max_bits": 10}},
        True,
    ),
    "smart cuts of variable rate": (
        "a.mp4",
        (50, 50),
        {"times_s": lacking(100), "options": {"g": "20"}, "cut": {"mode": "smart"}},
        True,
    ),
    "smart cuts of what cannot be copied": (
        "a.mp4",
        (50, 50),
        {"codec": "mpeg4", "cut": {"mode": "smart"}},
        True,
    ),
    "AVI with a gap": ("a.avi", (50, 50), {"times_s": halting(100), "options": {"bf": "0"}}, False),
}


@pytest.mark.parametrize(
    "kind",
    but(
        ("B-frames and sound", "shorter than what it looks ahead", "smart cuts of groups of 20"),
        SOURCES,
        (
            "long shots, of which the last parts give way",
            "AVI with a gap",
            "smart cuts of a transport stream",
            _OPEN,
        ),
    ),
)
def test_one_pass_gives_the_bytes_of_two(kind: str, tmp_path: Path) -> None:
    name, scenes, options, ahead = SOURCES[kind]
    changes = {"cut": options.get("cut", {})}
    path = write_video(tmp_path / name, scenes, **{key: options[key] for key in options if key != "cut"})
    twice = curated(path, config(0, **changes), tmp_path / "twice")
    assert curated(path, config(512, **changes), tmp_path / "once") == twice
    assert any(record.state == "kept" for record in twice[0].records)
    assert all(ready(path, config(512, **changes))) is ahead


@pytest.mark.parametrize(
    "changes",
    beyond(
        1,
        [
            {"cut": {"mode": "auto"}},
            {"spans": {**SHORT["spans"], "long_shots": "equal"}},
            {"spans": {**SHORT["spans"], "crop_s": 0.1}},
            {"shots": {"detector": "fixed"}},
        ],
    ),
)
def test_unpredictable_cuts_need_a_second_pass(changes: dict[str, Any], tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60, 70))
    assert not any(ready(path, config(512, **changes)))
    curated(path, config(512, **changes), tmp_path / "out")


@thorough
def test_stride_is_predicted_too(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60, 110))
    stride = {"spans": {**SHORT["spans"], "long_shots": "stride"}}
    assert all(ready(path, config(512, **stride)))
    assert curated(path, config(512, **stride), tmp_path / "a") == curated(
        path, config(0, **stride), tmp_path / "b"
    )


def test_sound_before_the_pictures(tmp_path: Path) -> None:
    path = sound_first(write_video(tmp_path / "a.mp4", (40, 60), audio=True))
    assert curated(path, config(512), tmp_path / "a") == curated(path, config(0), tmp_path / "b")


def test_memory_bounds_the_window(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", (60, 70))  # 160 x 128
    assert not any(ready(path, config(0)))
    assert all(ready(path, config(10)))
    assert not any(ready(path, config(1)))


@thorough
def test_deep_pictures_wait_finished_where_decoded_ones_are_too_many(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", (60, 70), codec="ffv1", pix_fmt="yuv420p10le")
    # H.264 waits with its motion vectors.
    vectors = write_video(tmp_path / "b.mkv", (60, 70), pix_fmt="yuv420p10le")
    room = config(4)
    assert all(ready(path, room))
    assert not any(ready(vectors, room))
    assert curated(path, room, tmp_path / "once") == curated(path, config(0), tmp_path / "twice")


def test_a_full_temporary_disk_costs_only_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", (60, 70))
    whole = curated(path, config(512), tmp_path / "whole")
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
        assert curated(path, config(512), tmp_path / "full") == whole


@thorough
def test_a_source_that_changes_its_size(tmp_path: Path) -> None:
    parts = [
        write_video(tmp_path / "1.ts", (60, 40)),
        write_video(tmp_path / "2.ts", (60,), size=(320, 256), start_s=4.0, first_scene=7),
    ]
    path = tmp_path / "a.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert not any(ready(path, config(512)))
    assert curated(path, config(512), tmp_path / "a") == curated(path, config(0), tmp_path / "b")


def test_an_encoder_that_fails_ahead_leaves_it_to_the_second_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(ClipEncoder):
        left = 20  # frames, so that it fails while the source is scanned

        def show(self, picture: VideoFrame, times: int) -> None:
            Failing.left -= 1
            if Failing.left < 0:
                raise CutError("no more")
            super().show(picture, times)

    path = write_video(tmp_path / "a.mp4", (60, 70))
    whole = curated(path, config(0), tmp_path / "whole")
    monkeypatch.setattr("reelweave.curate.source_pass.lookahead_encode.ClipEncoder", Failing)
    assert curated(path, config(512), tmp_path / "out") == whole
    assert Failing.left < 0


@thorough
def test_a_dark_moment_and_a_fade_do_not_lose_what_follows(tmp_path: Path) -> None:
    shots = [[picture[::2, ::2] for picture in pan(70, 2, seed)] for seed in range(4)]
    dark = np.zeros_like(shots[0][0])
    shots[0][40:42] = [dark, dark]
    shots[1][-12:] = [
        (picture * share).astype(np.uint8)
        for picture, share in zip(shots[1][-12:], np.linspace(1, 0, 12), strict=True)
    ]
    film = [*shots[0], *shots[1], *[dark] * 80, *shots[2], *shots[3]]
    path = encode(tmp_path / "a.mp4", film)
    assert curated(path, config(512), tmp_path / "a") == curated(path, config(0), tmp_path / "b")
    found = ready(path, config(512))
    assert len(found) >= 6
    assert sum(found) >= len(found) - 2


@thorough
def test_a_black_moment_in_a_long_shot_moves_no_clip_after_it(tmp_path: Path) -> None:
    film = [picture[::4, ::4] for picture in still(260)]
    film[59:109] = [np.zeros_like(film[0])] * 50
    path = encode(tmp_path / "a.mp4", film)
    twice = curated(path, config(0), tmp_path / "twice")
    for ahead_mb, predicted in ((512, [True] * 6), (30 / 16, [False, False, True, True, True, True])):
        assert ready(path, config(ahead_mb)) == predicted
        assert curated(path, config(ahead_mb), tmp_path / str(ahead_mb)) == twice


@thorough
@pytest.mark.skipif(not CORPUS.is_dir(), reason=NO_CORPUS)
def test_cuts_of_real_footage_are_predicted(tmp_path: Path) -> None:
    path = tmp_path / "first seconds.mp4"
    with av.open(str(CORPUS / "montages/montage_01.mp4")) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size and packet.pts * packet.time_base < 25:
                packet.stream = stream
                target.mux(packet)
    found = ready(path, CurateConfig())
    assert len(found) >= 5
    assert sum(found) >= 0.9 * len(found)
