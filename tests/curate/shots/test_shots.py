"""What the shot detector reports and what it leaves alone, on synthetic pictures and on the corpus."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from reelweave.curate.shots import (
    ColourDetector,
    ColourDetectorConfig,
    Segment,
    Transition,
    segments,
)
from reelweave.curate.shots.score import FileScore, load_truth, score_folder, score_video
from tests.media import NO_CORPUS
from tests.thorough import thorough

VIDEOS = Path(__file__).parents[4] / "shared" / "videos"

Frames = NDArray[np.float64]  # [n, 36, 64, 3], 0..255


def scene(seed: int, width: int = 64, height: int = 36) -> Frames:
    """A picture with structure of several sizes and colours of its own, [height, width, 3]."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3))
    for size in (4, 12):
        coarse = rng.uniform(-1, 1, (-(-height // size), -(-width // size), 3))
        picture += coarse.repeat(size, axis=0).repeat(size, axis=1)[:height, :width]
    return (rng.uniform(90, 160, 3) + 40 * picture).clip(0, 255)


def still(seed: int, frames: int) -> Frames:
    return np.repeat(scene(seed)[None], frames, axis=0)


def mixed(a: Frames, b: Frames, frames: int) -> Frames:
    """The mixed frames of a dissolve from picture a to picture b."""
    share = (np.arange(1, frames + 1) / (frames + 1))[:, None, None, None]
    return (1 - share) * a + share * b


def black(frames: int) -> Frames:
    return np.zeros((frames, 36, 64, 3))


def detect(*parts: Frames) -> list[Transition]:
    detector = ColourDetector(ColourDetectorConfig())
    for part in parts:
        for frame in part:
            detector.push(np.clip(frame, 0, 255).astype(np.uint8))
    return detector.finish()


def test_a_hard_cut_is_placed_between_its_two_frames() -> None:
    assert detect(still(1, 20), still(2, 20)) == [Transition(19, 20, "cut")]


def test_a_video_of_no_frame_has_no_transition() -> None:
    assert detect() == []


def test_a_video_of_one_frame_has_no_transition() -> None:
    assert detect(still(1, 1)) == []


def test_a_cut_is_found_right_after_the_first_and_right_before_the_last_frames() -> None:
    found = detect(still(1, 5), still(2, 30), still(3, 5))
    assert found == [Transition(4, 5, "cut"), Transition(34, 35, "cut")]


def test_a_shot_of_eight_frames_lies_between_two_cuts() -> None:
    found = detect(still(1, 30), still(2, 8), still(3, 30))
    assert found == [Transition(29, 30, "cut"), Transition(37, 38, "cut")]


def test_a_still_picture_is_one_shot() -> None:
    assert detect(still(1, 100)) == []


def test_noise_is_no_cut() -> None:
    noise = np.random.default_rng(0).normal(0, 25, (60, 36, 64, 3))
    assert detect(still(1, 60) + noise) == []


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("strength", [0.6, 1.0])
def test_a_flash_is_no_cut(frames: int, strength: float) -> None:
    flash = still(1, frames) * (1 - strength) + 255 * strength
    assert detect(still(1, 30), flash, still(1, 30)) == []


def test_one_broken_frame_is_no_cut() -> None:
    assert detect(still(1, 30), still(2, 1), still(1, 30)) == []


def test_a_drop_to_black_and_back_is_no_transition() -> None:
    assert detect(still(1, 30), black(6), still(1, 30)) == []


def test_a_step_in_exposure_is_no_cut() -> None:
    assert detect(still(1, 30), 0.6 * still(1, 30)) == []


def test_a_ramp_in_exposure_is_no_transition() -> None:
    gain = np.interp(np.arange(60), [15, 45], [1, 0.4])[:, None, None, None]
    assert detect(still(1, 60) * gain) == []


def test_a_fast_pan_is_no_cut() -> None:
    wide = scene(1, width=64 + 5 * 60)
    assert detect(np.stack([wide[:, 5 * step : 5 * step + 64] for step in range(60)])) == []


def test_a_shaking_camera_is_no_cut() -> None:
    large = scene(1, width=84, height=50)
    shifts = np.random.default_rng(0).integers(0, (7, 10), (60, 2))
    assert detect(np.stack([large[y : y + 36, x : x + 64] for y, x in shifts])) == []


def test_a_picture_that_comes_over_part_of_the_frame_is_no_cut() -> None:
    over = still(1, 60)
    over[30:, 4:20, 6:30] = 235
    assert detect(over) == []


@pytest.mark.parametrize("frames", [1, 3, 8, 20, 36])
def test_a_dissolve_spans_its_mixed_frames(frames: int) -> None:
    (found,) = detect(still(1, 40), mixed(scene(1), scene(2), frames), still(2, 40))
    assert found.kind == "gradual"
    assert abs(found.start_frame - 39) <= 1
    assert abs(found.end_frame - (40 + frames)) <= 1


def test_a_dissolve_between_moving_scenes_is_found() -> None:
    wide = [scene(seed, width=64 + 20) for seed in (1, 2)]
    moving = [np.stack([picture[:, k // 3 : k // 3 + 64] for k in range(60)]) for picture in wide]
    share = np.interp(np.arange(60), [20, 36], [0, 1])[:, None, None, None]
    (found,) = detect((1 - share) * moving[0] + share * moving[1])
    assert found.kind == "gradual"
    assert found.start_frame <= 22
    assert found.end_frame >= 34


@pytest.mark.parametrize("tone", [0, 255])
def test_a_fade_spans_from_full_picture_to_full_picture(tone: int) -> None:
    empty = np.full((6, 36, 64, 3), float(tone))
    out, back = mixed(scene(1), empty[0], 12), mixed(empty[0], scene(2), 9)
    (found,) = detect(still(1, 40), out, empty, back, still(2, 40))
    assert found.kind == "gradual"
    assert abs(found.start_frame - 39) <= 1
    assert abs(found.end_frame - (40 + 12 + 6 + 9)) <= 1


def test_black_between_two_hard_cuts_belongs_to_no_shot() -> None:
    assert detect(still(1, 30), black(10), still(2, 30)) == [Transition(29, 40, "gradual")]


def test_a_cut_shortly_before_a_white_flash_is_still_a_cut() -> None:
    white = np.full((1, 36, 64, 3), 250.0)
    found = detect(still(1, 30), still(2, 12), white, still(2, 30))
    assert found == [Transition(29, 30, "cut")]


def test_fades_at_the_very_start_and_end_are_no_transitions() -> None:
    fade_in, fade_out = mixed(black(1)[0], scene(1), 15), mixed(scene(1), black(1)[0], 15)
    assert detect(black(5), fade_in, still(1, 40), fade_out, black(5)) == []


def test_the_bars_of_a_portrait_picture_do_not_hide_a_cut() -> None:
    boxed = [still(seed, 30) for seed in (1, 2)]
    for part in boxed:
        part[:, :, :22] = part[:, :, 42:] = 0
    assert detect(*boxed) == [Transition(29, 30, "cut")]


def test_transitions_are_sorted_and_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for seed in range(30):
        parts.append(still(seed, int(rng.integers(3, 30))))
        parts.append([black(3), mixed(scene(seed), scene(seed + 1), 6), black(0)][int(rng.integers(3))])
    found = detect(*parts)
    assert len(found) > 15
    assert all(a.start_frame < a.end_frame <= b.start_frame for a, b in pairwise(found))


@thorough
def test_memory_does_not_grow_with_the_video() -> None:
    detector = ColourDetector(ColourDetectorConfig())
    noise = np.random.default_rng(0).integers(0, 20, (16, 36, 64, 3))
    frames = (still(1, 16) * 0.9 + noise).astype(np.uint8)
    sizes = []
    for number in range(4_000):
        detector.push(frames[number % 16])
        if number in (200, 3_999):
            sizes.append(len(pickle.dumps(detector)))
    assert sizes[1] < sizes[0] + 1_000


def test_pieces_cover_every_frame_once() -> None:
    transitions = [Transition(9, 10, "cut"), Transition(19, 25, "gradual")]
    assert segments(transitions, 40) == [
        Segment("shot", 0, 10),
        Segment("shot", 10, 20),
        Segment("transition", 20, 25),
        Segment("shot", 25, 40),
    ]


def test_an_empty_video_has_no_pieces() -> None:
    assert segments([], 0) == []


def colour() -> ColourDetector:
    return ColourDetector(ColourDetectorConfig())


@pytest.mark.skipif(not VIDEOS.is_dir(), reason=NO_CORPUS)
def test_hard_cuts_of_a_montage_are_found() -> None:
    montage = score_video(VIDEOS / "montages/montage_01.cuts.json", colour)
    assert montage.hard.f1 >= 0.95
    assert montage.gradual.found >= 5
    assert montage.gradual.false == 0


@pytest.fixture(scope="module")
def corpus() -> dict[str, FileScore]:
    if not VIDEOS.is_dir():
        pytest.skip(NO_CORPUS)
    return {Path(score.file).stem: score for score in score_folder(VIDEOS, colour)}


@thorough
def test_hard_cuts_of_another_montage_are_found(corpus: dict[str, FileScore]) -> None:
    assert corpus["montage_02"].hard.f1 >= 0.95


@thorough
def test_dissolves_and_fades_of_real_footage_are_found(corpus: dict[str, FileScore]) -> None:
    assert sum(score.gradual.found for score in corpus.values()) >= 9
    assert sum(score.gradual.false for score in corpus.values()) <= 1


@thorough
def test_what_only_looks_like_a_cut_is_left_alone(corpus: dict[str, FileScore]) -> None:
    alarms = []
    for path in VIDEOS.rglob("*.cuts.json"):
        truth = load_truth(path)
        for place in truth.not_cuts:
            alarms += [
                (truth.file, place.type, alarm)
                for alarm in corpus[Path(truth.file).stem].false
                if alarm.start_frame <= place.end_frame and place.start_frame <= alarm.end_frame
            ]
    assert alarms == []
