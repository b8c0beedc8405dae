"""Whether a frame in the middle of a change is like both the picture before it and the one after."""

import numpy as np
import pytest

from reelweave.curate.shots.colour.features import features
from reelweave.curate.shots.colour.history import FeatureWindow
from reelweave.curate.shots.colour.mixture import holds_mixture
from reelweave.curate.shots.types import Transition
from tests.curate.shots.test_shots import Frames, mixed, scene, still

WIDTH = 64


def blended(video: Frames, start: int, end: int) -> bool:
    """Whether the change between two frames of a video holds a mixture of both."""
    history = FeatureWindow(len(video))
    history.extend(features(video.astype(np.uint8)))
    return holds_mixture(history, Transition(start, end, "gradual"))


def dissolve(frames: int, incoming: int = 2) -> Frames:
    return np.concatenate([still(1, 5), mixed(scene(1), scene(incoming), frames), still(incoming, 5)])


def pan(frames: int) -> Frames:
    """A camera that turns from one view to another."""
    wide = np.concatenate([scene(1), scene(2)], axis=1)
    turns = [wide[:, at : at + WIDTH] for at in np.linspace(0, WIDTH, frames + 2).astype(int)]
    return np.concatenate([still(1, 4), np.stack(turns), still(2, 4)])


@pytest.mark.parametrize("frames", [8, 30])
def test_a_dissolve_holds_a_mixture(frames: int) -> None:
    assert blended(dissolve(frames), 4, 5 + frames)


def test_a_pan_holds_none() -> None:
    assert not blended(pan(12), 4, 17)


def test_short_changes_those_back_to_the_same_picture_and_those_at_the_ends_hold_none() -> None:
    assert not blended(dissolve(3), 4, 8)
    assert not blended(dissolve(8, incoming=1), 4, 13)
    assert not blended(dissolve(8), 4, len(dissolve(8)))
