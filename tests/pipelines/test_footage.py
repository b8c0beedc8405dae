"""Footage made for the demo: does every file hold what is said of it?"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from pipelines.footage import REELS, MadeVideo, make_footage
from pipelines.footage.edit import Join, lay_out
from pipelines.footage.playthings import colour_bars

SHORT = [replace(reel, shots=tuple(replace(shot, seconds=0.6) for shot in reel.shots)) for reel in REELS]
"""Every reel of the demo with each shot cut down to 0.6 s: a tenth of the pixels, all of the troubles."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MadeVideo]:
    return {video.path.name: video for video in make_footage(tmp_path_factory.mktemp("raw"), reels=SHORT)}


@pytest.fixture(scope="module")
def whole(made: dict[str, MadeVideo]) -> list[MadeVideo]:
    return [video for video in made.values() if video.broken is None]


def decode(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def pictures(path: Path) -> np.ndarray:
    return np.stack([frame.to_ndarray(format="rgb24") for frame in decode(path)]).astype(np.int16)


def cut_list(video: MadeVideo) -> dict:
    return json.loads(video.path.with_name(f"{video.path.stem}.cuts.json").read_text())


def differences(shown: np.ndarray) -> np.ndarray:
    """Mean absolute difference of each frame to the next."""
    return np.abs(np.diff(shown, axis=0)).mean(axis=(1, 2, 3))


def test_videos_decode_to_the_frames_and_size_their_cut_lists_state(whole: list[MadeVideo]) -> None:
    assert len(whole) >= 8
    for video in whole:
        stated = cut_list(video)
        frames = decode(video.path)
        assert (stated["file"], stated["frames"]) == (video.path.name, len(frames))
        assert {(frame.width, frame.height) for frame in frames} == {(stated["width"], stated["height"])}
        assert video.shots[-1][1] == len(frames) - 1


def test_cut_lists_tell_the_same_transitions_as_the_result(whole: list[MadeVideo]) -> None:
    kinds = []
    for video in whole:
        stated = cut_list(video)["transitions"]
        kinds += [each["type"] for each in stated]
        spans = [(each.join.type, each.start_frame, each.end_frame) for each in video.transitions]
        assert [(each["type"], each["start_frame"], each["end_frame"]) for each in stated] == spans
        assert all(each["required"] and each["allowed_boundaries"] in (1, 2) for each in stated)
    assert kinds.count("dissolve") >= 2
    assert kinds.count("fade_through_black") >= 1


def test_hard_cuts_stand_far_above_the_motion_around_them(whole: list[MadeVideo]) -> None:
    for video in whole:
        change = differences(pictures(video.path))
        for each in video.transitions:
            if each.join.type == "cut":
                at = each.start_frame
                around = np.r_[change[max(0, at - 8) : at], change[at + 1 : at + 9]]
                assert change[at] > 4 * around.max(), f"{video.path.name} frame {at}"


def test_dissolves_show_both_shots_and_fades_reach_black(whole: list[MadeVideo]) -> None:
    for video in whole:
        shown = pictures(video.path)
        for each in video.transitions:
            before, after = shown[each.start_frame], shown[each.end_frame]
            middle = shown[(each.start_frame + each.end_frame) // 2]
            if each.join.type == "dissolve":
                apart = np.abs(before - after).mean()
                assert np.abs(middle - before).mean() < 0.8 * apart
                assert np.abs(middle - after).mean() < 0.8 * apart
            elif each.join.type == "fade_through_black":
                assert middle.mean() < 4 < min(before.mean(), after.mean())


def test_every_shot_moves_but_the_test_card(made: dict[str, MadeVideo]) -> None:
    for reel in SHORT:
        if reel.cut_off:
            continue
        change = differences(pictures(made[reel.name].path))
        for shot, (first, last) in zip(reel.shots, made[reel.name].shots, strict=True):
            moves = change[first:last].mean() > 0.25
            assert moves == (shot.scene is not colour_bars), f"{reel.name} frames {first}..{last}"


def test_the_cut_off_file_is_an_mp4_that_does_not_open(made: dict[str, MadeVideo]) -> None:
    broken = [video for video in made.values() if video.broken]
    assert [video.path.read_bytes()[4:8] for video in broken] == [b"ftyp"]
    with pytest.raises(av.InvalidDataError):
        av.open(str(broken[0].path))


def test_captions_lie_where_people_put_them(made: dict[str, MadeVideo]) -> None:
    for reel in SHORT:
        video = made[reel.name]
        text, data = video.path.with_suffix(".txt"), video.path.with_suffix(".json")
        found = []
        if text.exists():
            found.append(text.read_text().strip())
        if data.exists():
            found.append(json.loads(data.read_text())["caption"])
        if reel.caption_in == "container":
            with av.open(str(video.path)) as container:
                found.append(container.metadata["comment"])
        assert found == ([video.caption] if video.caption else [])
    places = [reel.caption_in for reel in SHORT]
    assert [places.count(place) for place in ("json", "container", "nowhere")] == [1, 1, 1]


def test_the_uneven_reel_has_frames_of_different_lengths(made: dict[str, MadeVideo]) -> None:
    times = [frame.time for frame in decode(made["moving_patterns.mp4"].path)]
    assert len(np.unique(np.diff(times).round(3))) == 3


def test_the_turned_reel_is_upright_once_its_matrix_is_heeded(made: dict[str, MadeVideo]) -> None:
    frame = decode(made["phone_upright.mp4"].path)[0]
    assert frame.width > frame.height
    assert frame.rotation == -90


def test_codecs_and_sound_are_those_of_real_dumps(made: dict[str, MadeVideo]) -> None:
    codecs = set()
    for video in made.values():
        if video.broken is None:
            with av.open(str(video.path)) as container:
                codecs |= {(stream.type, stream.codec_context.name) for stream in container.streams}
    assert codecs == {("video", "h264"), ("video", "vp9"), ("audio", "aac")}


def test_a_seed_gives_the_same_bytes_again_and_another_seed_does_not(
    made: dict[str, MadeVideo], tmp_path: Path
) -> None:
    reels = [reel for reel in SHORT if reel.tone or reel.name.endswith(".webm") or reel.turned]
    for video in make_footage(tmp_path / "again", reels=reels):
        assert video.path.read_bytes() == made[video.path.name].path.read_bytes(), video.path.name
    for video in make_footage(tmp_path / "other", seed=1, reels=reels[:1]):
        assert video.path.read_bytes() != made[video.path.name].path.read_bytes()


def test_footage_is_used_again_while_its_checksums_hold(tmp_path: Path) -> None:
    reels = [reel for reel in SHORT if reel.turned]
    path = make_footage(tmp_path, reels=reels)[0].path
    good, written = path.read_bytes(), path.stat().st_mtime_ns
    make_footage(tmp_path, reels=reels)
    assert path.stat().st_mtime_ns == written
    path.write_bytes(good[:-1])
    make_footage(tmp_path, reels=reels)
    assert path.read_bytes() == good


def test_a_killed_run_leaves_no_half_video_and_the_next_run_makes_it_good(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from pipelines.footage import make_footage; "
    process = subprocess.Popen([sys.executable, "-c", code + "make_footage(Path(sys.argv[1]))", tmp_path])
    deadline = time.monotonic() + 300
    while len(list(tmp_path.glob(".*.mp4.partial"))) == 0 or len(list(tmp_path.glob("*.mp4"))) == 0:
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for path in tmp_path.glob("*.mp4"):
        assert len(decode(path)) == json.loads(path.with_suffix(".cuts.json").read_text())["frames"]
    assert not (tmp_path / "footage.json").exists()
    make_footage(tmp_path, reels=SHORT)
    assert not list(tmp_path.glob(".*"))


def test_weights_of_a_dissolve_add_up_to_one_and_those_of_a_fade_fall_to_none() -> None:
    timeline = lay_out([4, 4, 4], [Join("dissolve", frames=3), Join("fade_through_black", frames=1, black=2)])
    assert timeline.shots == ((0, 3), (7, 10), (15, 18))
    assert [timeline.weights(frame) for frame in (3, 4, 5, 6, 7)] == [
        {0: 1},
        {0: 0.75, 1: 0.25},
        {0: 0.5, 1: 0.5},
        {0: 0.25, 1: 0.75},
        {1: 1},
    ]
    assert [timeline.weights(frame) for frame in (10, 11, 12, 13, 14, 15)] == [
        {1: 1},
        {1: 0.5},
        {},
        {},
        {2: 0.5},
        {2: 1},
    ]
    assert [timeline.visible_from(shot) for shot in range(3)] == [0, 4, 14]
