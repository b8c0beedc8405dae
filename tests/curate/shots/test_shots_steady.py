"""Short changes between two pictures that hold still."""

import numpy as np
import pytest

from reelweave.curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.colour.features import features
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.colour.steady import AROUND, leads_between_still_pictures
from reelweave.curate.shots.types import Transition
from tests.curate.shots.test_shots import Frames, mixed, scene, still


def steady(video: Frames, start: int, end: int) -> bool:
    """Whether the change between two frames of a video leads from one still picture to another."""
    history = FeatureWindow(len(video))
    history.extend(features(video.astype(np.uint8)))
    return leads_between_still_pictures(history, Transition(start, end, "gradual"))


def joined(frames: int, incoming: int = 2) -> Frames:
    return np.concatenate([still(1, 20), mixed(scene(1), scene(incoming), frames), still(incoming, 20)])


@pytest.mark.parametrize("frames", [2, 8])
def test_a_short_dissolve_leads_between_still_pictures(frames: int) -> None:
    assert steady(joined(frames), 19, 20 + frames)


def test_longer_changes_and_those_back_to_the_same_picture_do_not() -> None:
    assert not steady(joined(20), 19, 40)
    assert not steady(joined(4, incoming=1), 19, 24)


def test_pictures_that_keep_changing_on_either_side_are_not_still() -> None:
    changing = np.concatenate([still(seed, 1) for seed in range(3, 23)])
    assert not steady(np.concatenate([changing, mixed(scene(22), scene(1), 4), still(1, 20)]), 19, 24)
    assert not steady(np.concatenate([still(1, 20), mixed(scene(1), scene(3), 4), changing]), 19, 24)


def test_ends_of_a_video_have_fewer_frames_beside_them() -> None:
    video = joined(4)[20 - AROUND + 2 : 24 + AROUND - 2]
    assert steady(video, AROUND - 3, AROUND + 2)


def test_a_dissolve_that_the_networks_half_believe_is_reported_between_still_pictures() -> None:
    doubting = ColourDetector(ColourDetectorConfig(gradual_threshold=1.05))  # no probability is above it
    for frame in np.concatenate([still(1, 50), mixed(scene(1), scene(2), 8), still(2, 50)]).astype(np.uint8):
        doubting.push(frame)
    (found,) = doubting.finish()
    assert found.kind == "gradual"
    assert 48 <= found.start_frame < found.end_frame <= 59
