"""Footage made for the demo: does every file hold what is said of it?"""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from reelweave.pipelines.footage import REELS, make_footage
from reelweave.pipelines.footage.make import cut_list, render
from reelweave.pipelines.footage.reels import Reel, Shot
from reelweave.pipelines.footage.scenes import BLACK, TEST_CARD, draw_scene
from tests.thorough import beyond, thorough

SHORT = tuple(
    replace(
        reel,
        width=reel.width // 16 * 8,
        height=reel.height // 16 * 8,
        shots=tuple(replace(shot, seconds=min(shot.seconds, 0.6)) for shot in reel.shots),
    )
    for reel in REELS
)
"""Every reel of the demo, half as wide and high, with each shot cut down to 0.6 s: all of the troubles."""
WHOLE = [reel for reel in SHORT if not reel.cut_off]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    make_footage(folder, SHORT)
    return folder


@pytest.fixture(scope="module")
def shown(made: Path) -> dict[str, np.ndarray]:
    """Frames of every whole reel by name."""
    return {reel.name: pictures(made / reel.name) for reel in WHOLE}


def decode(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def pictures(path: Path) -> np.ndarray:
    return np.stack([frame.to_ndarray(format="rgb24") for frame in decode(path)]).astype(np.int16)


def truth(video: Path) -> dict:
    return json.loads(video.with_suffix(".cuts.json").read_text())


def differences(shown: np.ndarray) -> np.ndarray:
    """Mean absolute difference of each frame to the next."""
    return np.abs(np.diff(shown, axis=0)).mean(axis=(1, 2, 3))


@pytest.mark.parametrize("scene", sorted({shot.scene for reel in REELS for shot in reel.shots}))
def test_a_scene_is_drawn_the_same_every_time(scene: str) -> None:
    def frames() -> list[bytes]:
        with av.open(draw_scene(scene, 96, 54, 10), format="lavfi") as graph:
            decoded = graph.decode(video=0)
            return [next(decoded).to_ndarray().tobytes() for _ in range(3)]

    assert frames() == frames()


def test_videos_decode_to_the_frames_and_size_their_cut_lists_state(
    made: Path, shown: dict[str, np.ndarray]
) -> None:
    kinds = []
    for name, frames in shown.items():
        stated = truth(made / name)
        kinds += [each["type"] for each in stated["transitions"]]
        assert (stated["file"], stated["frames"]) == (name, len(frames))
        assert frames.shape[1:3] == (stated["height"], stated["width"])
        assert all(
            0 <= each["start_frame"] < each["end_frame"] < len(frames) for each in stated["transitions"]
        )
    assert kinds.count("cut") >= 8
    assert kinds.count("dissolve") >= 2
    assert kinds.count("fade_through_black") >= 2


def test_hard_cuts_stand_far_above_the_motion_around_them(made: Path, shown: dict[str, np.ndarray]) -> None:
    for name, frames in shown.items():
        change = differences(frames)
        for each in truth(made / name)["transitions"]:
            if each["type"] == "cut":
                at = each["start_frame"]
                around = np.r_[change[max(0, at - 8) : at], change[at + 1 : at + 9]]
                assert each["end_frame"] == at + 1
                assert change[at] > 2 * around.max(), f"{name} frame {at}"


def test_dissolves_show_both_shots_and_fades_reach_black(made: Path, shown: dict[str, np.ndarray]) -> None:
    for name, frames in shown.items():
        for each in truth(made / name)["transitions"]:
            before, after = frames[each["start_frame"]], frames[each["end_frame"]]
            middle = frames[(each["start_frame"] + each["end_frame"]) // 2]
            if each["type"] == "dissolve":
                apart = np.abs(before - after).mean()
                assert np.abs(middle - before).mean() < 0.8 * apart
                assert np.abs(middle - after).mean() < 0.8 * apart
            elif each["type"] == "fade_through_black":
                first, last = each["black_frames"]
                assert frames[first : last + 1].max() < 8
                assert min(frames[place].mean() for place in (first - 1, last + 1)) > 0.1
                assert min(before.mean(), after.mean()) > 8


def test_every_shot_moves_but_the_test_card(made: Path, shown: dict[str, np.ndarray]) -> None:
    for reel in WHOLE:
        scenes = [shot.scene for shot in reel.shots if shot.scene != BLACK]
        joins = truth(made / reel.name)["transitions"]
        starts = [0, *(each["end_frame"] for each in joins)]
        ends = [*(each["start_frame"] for each in joins), len(shown[reel.name]) - 1]
        change = differences(shown[reel.name])
        for scene, first, last in zip(scenes, starts, ends, strict=True):
            moves = change[first:last].mean() > 0.25
            assert moves == (scene != TEST_CARD), f"{reel.name} frames {first}..{last}"


def test_the_cut_off_file_is_an_mp4_that_does_not_open(made: Path) -> None:
    broken = [made / reel.name for reel in SHORT if reel.cut_off]
    assert [path.read_bytes()[4:8] for path in broken] == [b"ftyp"]
    with pytest.raises(av.InvalidDataError):
        av.open(str(broken[0]))


def test_captions_lie_where_people_put_them(made: Path) -> None:
    for reel in SHORT:
        video = made / reel.name
        text, data = video.with_suffix(".txt"), video.with_suffix(".json")
        found = []
        if text.exists():
            found.append(text.read_text().strip())
        if data.exists():
            found.append(json.loads(data.read_text())["caption"])
        if reel.caption_in == "container":
            with av.open(str(video)) as container:
                found.append(container.metadata["comment"])
        assert found == ([reel.caption] if reel.caption else [])
    places = [reel.caption_in if reel.caption else "nowhere" for reel in SHORT]
    assert [places.count(place) for place in ("json", "container", "nowhere")] == [1, 1, 1]


def test_the_uneven_reel_has_frames_of_different_lengths(made: Path) -> None:
    times = [frame.time for reel in SHORT if reel.uneven for frame in decode(made / reel.name)]
    assert len(np.unique(np.diff(times).round(3))) == 3


def test_the_turned_reel_is_upright_once_its_matrix_is_heeded(made: Path) -> None:
    frames = [decode(made / reel.name)[0] for reel in SHORT if reel.turned]
    assert [(frame.width > frame.height, frame.rotation) for frame in frames] == [(True, -90)]


def test_codecs_and_sound_are_those_of_real_dumps(made: Path) -> None:
    codecs = set()
    for reel in WHOLE:
        with av.open(str(made / reel.name)) as container:
            codecs |= {(stream.type, stream.codec_context.name) for stream in container.streams}
            for stream in container.streams.audio:
                assert float(stream.duration * stream.time_base) == pytest.approx(
                    container.duration / 1e6, abs=0.1
                )
    assert codecs == {("video", "h264"), ("video", "vp9"), ("audio", "aac")}


def awkward(reel: Reel) -> bool:
    return reel.tone or reel.turned or reel.uneven or reel.name.endswith(".webm")


@pytest.mark.parametrize("reel", beyond(2, filter(awkward, SHORT)), ids=lambda reel: reel.name)
def test_a_reel_is_the_same_bytes_every_time(made: Path, reel: Reel) -> None:
    assert render(reel) == (made / reel.name).read_bytes()


def test_footage_is_used_again_unless_a_reel_is_missing_or_others_are_asked_for(tmp_path: Path) -> None:
    reel = next(reel for reel in SHORT if reel.turned)
    make_footage(tmp_path, [reel])
    written = (tmp_path / reel.name).stat().st_mtime_ns
    make_footage(tmp_path, [reel])
    assert (tmp_path / reel.name).stat().st_mtime_ns == written
    whole = (tmp_path / reel.name).read_bytes()
    (tmp_path / reel.name).unlink()
    make_footage(tmp_path, [reel])
    assert (tmp_path / reel.name).read_bytes() == whole
    make_footage(tmp_path, [replace(reel, shots=reel.shots[:1])])
    assert truth(tmp_path / reel.name)["transitions"] == []


@thorough
def test_a_killed_run_leaves_no_half_video_and_the_next_run_makes_it_good(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.pipelines.test_footage import SHORT, make_footage;"
        "from tests.warm import die_behind; die_behind('[.]mp4$'); make_footage(Path(sys.argv[1]), SHORT[:3])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], start_new_session=True, check=False)
    assert done.returncode == -signal.SIGKILL
    for path in tmp_path.glob("*.mp4"):
        assert len(decode(path)) == truth(path)["frames"]
    assert not (tmp_path / "footage.json").exists()
    make_footage(tmp_path, SHORT[:3])
    assert {path.name for path in tmp_path.glob("*.mp4")} == {reel.name for reel in SHORT[:3]}


def test_transitions_are_where_their_frames_are_mixed() -> None:
    """Places are worked out by hand: three shots of four frames, a dissolve and a fade through two black frames."""
    four = Shot(TEST_CARD, 4 / 24)
    reel = replace(
        REELS[0],
        shots=(
            four,
            replace(four, mixed=3),
            replace(four, scene=BLACK, seconds=2 / 24, mixed=1),
            replace(four, mixed=1),
        ),
    )
    found = [(each["type"], each["start_frame"], each["end_frame"]) for each in cut_list(reel)["transitions"]]
    assert found == [("dissolve", 3, 7), ("fade_through_black", 10, 15)]
    assert cut_list(reel)["transitions"][1]["black_frames"] == [12, 13]
    assert cut_list(reel)["frames"] == 19
