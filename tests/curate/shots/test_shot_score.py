"""How reports are matched with the truth, and what a wrong truth file is answered with."""

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from reelweave.curate.shots import ColourDetector, ColourDetectorConfig, ShotDetector, Transition
from reelweave.curate.shots.score import (
    Counts,
    TrueTransition,
    Truth,
    load_truth,
    score,
    score_folder,
    score_video,
    summary,
)
from reelweave.loader.errors import RunError, UsageError

CUT = TrueTransition(type="cut", start_frame=99, end_frame=100)
DISSOLVE = TrueTransition(type="dissolve", start_frame=200, end_frame=221)


def scored(transitions: list[TrueTransition], *reported: Transition) -> tuple[Counts, Counts]:
    result = score(Truth(file="a.mp4", frames=500, transitions=tuple(transitions)), reported)
    return result.hard, result.gradual


def cut(frame: int) -> Transition:
    return Transition(frame - 1, frame, "cut")


@pytest.mark.parametrize("frame", [99, 100, 101])
def test_a_cut_may_be_one_frame_off(frame: int) -> None:
    assert scored([CUT], cut(frame))[0] == Counts(1, 0, 0)


@pytest.mark.parametrize("frame", [98, 102])
def test_a_cut_two_frames_off_is_missed_and_false(frame: int) -> None:
    assert scored([CUT], cut(frame))[0] == Counts(0, 1, 1)


def test_a_second_report_of_a_cut_is_false() -> None:
    assert scored([CUT], cut(100), cut(101))[0] == Counts(1, 0, 1)


def test_a_gradual_report_as_short_as_a_cut_finds_it() -> None:
    assert scored([CUT], Transition(98, 100, "gradual")) == (Counts(1, 0, 0), Counts(0, 0, 0))


def test_a_long_gradual_report_over_a_cut_is_false_and_the_cut_missed() -> None:
    assert scored([CUT], Transition(90, 110, "gradual")) == (Counts(0, 1, 0), Counts(0, 0, 1))


def test_a_cut_inside_a_dissolve_finds_it() -> None:
    assert scored([DISSOLVE], cut(210)) == (Counts(0, 0, 0), Counts(1, 0, 0))


def test_a_second_cut_inside_a_dissolve_is_a_false_cut() -> None:
    assert scored([DISSOLVE], cut(205), cut(215)) == (Counts(0, 0, 1), Counts(1, 0, 0))


def test_both_ends_of_a_fade_may_be_reported() -> None:
    fade = DISSOLVE.model_copy(update={"allowed_boundaries": 2})
    assert scored([fade], cut(205), cut(215)) == (Counts(0, 0, 0), Counts(1, 0, 0))


@pytest.mark.parametrize(("start", "end"), [(203, 206), (195, 225)])
def test_a_gradual_report_inside_or_around_a_dissolve_finds_it(start: int, end: int) -> None:
    assert scored([DISSOLVE], Transition(start, end, "gradual"))[1] == Counts(1, 0, 0)


def test_a_gradual_report_beside_a_dissolve_is_false() -> None:
    assert scored([DISSOLVE], Transition(215, 260, "gradual"))[1] == Counts(0, 1, 1)


@pytest.mark.parametrize("reported", [[], [cut(100)]])
def test_what_is_not_required_neither_helps_nor_hurts(reported: list[Transition]) -> None:
    optional = CUT.model_copy(update={"required": False})
    assert scored([optional], *reported)[0] == Counts(0, 0, 0)


def test_a_report_counts_for_what_is_required_rather_than_for_what_is_not_beside_it() -> None:
    before = DISSOLVE.model_copy(update={"start_frame": 90, "end_frame": 100, "required": False})
    assert scored([before, CUT], cut(100))[0] == Counts(1, 0, 0)


def test_mixed_frames_kept_and_clean_frames_lost_are_counted() -> None:
    truth = Truth(file="a.mp4", frames=500, transitions=(DISSOLVE,))
    result = score(truth, [Transition(205, 224, "gradual")])
    assert (result.mixed_kept, result.clean_lost) == (5, 3)


def test_without_cuts_and_reports_all_is_right() -> None:
    nothing = Counts(0, 0, 0)
    assert (nothing.precision, nothing.recall, nothing.f1) == (1.0, 1.0, 1.0)


def test_f1_is_the_harmonic_mean() -> None:
    assert Counts(found=3, missed=1, false=3).f1 == pytest.approx(0.6)


def test_the_summary_adds_up_all_files() -> None:
    truth = Truth(file="a.mp4", frames=500, transitions=(CUT, DISSOLVE))
    total = summary([score(truth, [cut(100)]), score(truth, [cut(300), cut(210)])])
    assert {name: total["hard"][name] for name in ("found", "missed", "false")} == {
        "found": 1,
        "missed": 1,
        "false": 1,
    }
    assert total["gradual"]["recall"] == 0.5
    assert [file["missed"] for file in total["files"]] == [[["dissolve", 200, 221]], [["cut", 99, 100]]]


def write_truth(folder: Path, **changes: Any) -> Path:
    truth = {
        "file": "clips/a.mp4",
        "frames": 24,
        "transitions": [{"type": "cut", "start_frame": 11, "end_frame": 12}],
    } | changes
    path = folder / "a.cuts.json"
    path.write_text(json.dumps(truth))
    return path


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"frames": "many"}, "frames"),
        ({"transitions": [{"type": "cut", "start_frame": 3}]}, "transitions.0.end_frame"),
        ({"transitions": [{"type": "cut", "start_frame": 12, "end_frame": 11}]}, "transitions.0"),
        ({"transitions": [{"type": "cut", "start_frame": 23, "end_frame": 24}]}, "transitions.0"),
    ],
)
def test_a_wrong_truth_is_refused_by_file_and_key(tmp_path: Path, changes: dict[str, Any], key: str) -> None:
    path = write_truth(tmp_path, **changes)
    with pytest.raises(UsageError) as refused:
        load_truth(path)
    assert str(path) in str(refused.value)
    assert key in str(refused.value)


@pytest.mark.parametrize("content", ["", "[1]", "\x00"])
def test_a_file_that_is_no_truth_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.cuts.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"a\.cuts\.json"):
        load_truth(path)


def test_a_truth_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.cuts\.json"):
        load_truth(tmp_path / "a.cuts.json")


def write_video(folder: Path) -> None:
    """24 frames with a hard cut in the middle."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (2, 9, 16, 3), dtype=np.uint8).repeat(16, axis=1).repeat(16, axis=2)
    with av.open(str(folder / "a.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 256, 144, "yuv420p"
        for number in range(24):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pictures[number // 12], format="rgb24")))
        container.mux(stream.encode())


def detector() -> ShotDetector:
    return ColourDetector(ColourDetectorConfig())


def test_a_video_is_scored_against_the_truth_beside_it(tmp_path: Path) -> None:
    write_video(tmp_path)
    result = score_video(write_truth(tmp_path), detector)
    assert result.hard == Counts(1, 0, 0)
    assert result.reported == (cut(12),)


def test_a_truth_for_another_number_of_frames_stops_the_run(tmp_path: Path) -> None:
    write_video(tmp_path)
    with pytest.raises(RunError, match="24 frames"):
        score_video(write_truth(tmp_path, frames=30), detector)


def test_a_truth_without_its_video_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.mp4"):
        score_video(write_truth(tmp_path), detector)


def test_a_folder_without_truth_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no"):
        score_folder(tmp_path, detector)
