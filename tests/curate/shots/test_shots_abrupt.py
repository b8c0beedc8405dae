"""Hard cuts that are told by their shape: one step that makes the whole change."""

import numpy as np
import pytest

from reelweave.curate.shots.colour.abrupt import AFTER, BEFORE, is_abrupt
from reelweave.curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.colour.features import features
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.types import Transition
from tests.curate.shots.test_shots import Frames, mixed, scene, still


def abrupt(video: Frames, frame: int) -> bool:
    """Whether one step makes the change before a frame of a video."""
    history = FeatureWindow(len(video))
    history.extend(features(video.astype(np.uint8)))
    return is_abrupt(history, frame)


def test_a_cut_between_two_scenes_is_abrupt_at_its_frame_alone() -> None:
    video = np.concatenate([still(1, 20), still(2, 20)])
    assert [frame for frame in range(1, 40) if abrupt(video, frame)] == [20]


@pytest.mark.parametrize("frames", [2, 5, 12])
def test_a_dissolve_is_not(frames: int) -> None:
    video = np.concatenate([still(1, 20), mixed(scene(1), scene(2), frames), still(2, 20)])
    assert not any(abrupt(video, frame) for frame in range(1, len(video)))


@pytest.mark.parametrize("frames", [1, 3, BEFORE - 1])
def test_a_flash_and_another_picture_of_a_few_frames_are_not(frames: int) -> None:
    video = np.concatenate([still(1, 20), still(2, frames), still(1, 20)])
    assert not any(abrupt(video, frame) for frame in range(1, len(video)))


def test_a_scene_that_keeps_changing_is_not() -> None:
    video = np.concatenate([still(seed, 1) for seed in range(30)])
    assert not any(abrupt(video, frame) for frame in range(BEFORE, 30 - AFTER))


def test_ends_of_a_video_have_fewer_frames_beside_them() -> None:
    assert abrupt(np.concatenate([still(1, 2), still(2, 20)]), 2)
    assert abrupt(np.concatenate([still(1, 20), still(2, 2)]), 20)


def test_a_cut_that_the_networks_half_believe_is_reported_once_its_step_is_the_whole_change() -> None:
    video = np.concatenate([still(1, 50), still(2, 50)]).astype(np.uint8)
    doubting = ColourDetector(ColourDetectorConfig(cut_threshold=1.5))  # no probability is above it
    for frame in video:
        doubting.push(frame)
    assert doubting.finish() == [Transition(49, 50, "cut")]
