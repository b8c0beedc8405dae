"""How much of a picture is found again near its place in the pictures before it."""

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.shots.colour.features import features
from reelweave.curate.shots.colour.motion import FARTHEST, RANKS, BlockMotion
from tests.curate.shots.test_shots import scene

Floats = NDArray[np.float32]


def compared(*pictures: NDArray[np.float64]) -> Floats:
    """Differences of the last picture from itself, the one before and so on, [FARTHEST + 1, RANKS]."""
    frames = np.stack([np.clip(each, 0, 255).astype(np.uint8) for each in pictures])
    last: Floats = BlockMotion().push(features(frames))[-1]
    return last


def test_a_picture_does_not_differ_from_itself() -> None:
    assert compared(scene(1), scene(2))[0].max() < 1e-5


def test_what_moved_a_little_is_found_again_and_another_scene_is_not() -> None:
    wide = scene(1, width=68)
    moved, replaced = compared(wide[:, :64], wide[:, 4:])[1], compared(scene(1), scene(2))[1]
    assert (moved + 0.2 < replaced).all()
    assert moved[:-1].max() < 0.01  # of the last rank are blocks that came in at the border


def test_blocks_that_went_different_ways_are_found_again() -> None:
    left, right = scene(1), scene(2)
    before = np.concatenate([left[:, 6:38], right[:, 6:38]], axis=1)
    after = np.concatenate([left[:, 4:36], right[:, 8:40]], axis=1)
    assert np.median(compared(before, after)[1]) < 0.15


def test_brightness_and_contrast_are_no_difference() -> None:
    assert compared(scene(1), 40 + 0.6 * scene(1))[1].max() < 0.05


def test_noise_in_pictures_without_structure_is_no_difference() -> None:
    rng = np.random.default_rng(0)
    flat = [np.full((36, 64, 3), 90.0) + rng.normal(0, 2, (36, 64, 3)) for _ in range(2)]
    assert compared(*flat)[1].max() < 0.15


def test_differences_are_those_of_each_block_in_every_shift() -> None:
    rng = np.random.default_rng(3)
    found = features(rng.integers(0, 255, (20, 36, 64, 3)).astype(np.uint8))
    got = BlockMotion().push(found)
    layouts = [np.asarray(each.layout, np.float64).reshape(18, 32) for each in found]
    for later, lag in ((19, 1), (17, 15), (16, 0), (3, 2)):
        padded = np.pad(layouts[later - lag], ((2, 2), (3, 3)), mode="edge")
        best = []
        for top in range(0, 18, 6):
            for left in range(0, 32, 8):
                block = about_mean(layouts[later][top : top + 6, left : left + 8])
                best.append(
                    max(
                        block
                        @ about_mean(padded[top + down : top + down + 6, left + right : left + right + 8])
                        for down in range(5)
                        for right in range(7)
                    )
                )
        np.testing.assert_allclose(got[later, lag], 1 - np.sort(best)[list(RANKS)], atol=1e-5)


def about_mean(block: NDArray[np.float64]) -> NDArray[np.float64]:
    """The block minus its mean, with the floor as one more pixel, of length 1."""
    flat = np.append((block - block.mean()).ravel(), np.sqrt(20 * block.size))
    return flat / np.linalg.norm(flat)


def test_frames_may_come_in_any_batches() -> None:
    rng = np.random.default_rng(0)
    known = features(rng.integers(0, 255, (40, 36, 64, 3)).astype(np.uint8))
    whole, parts = BlockMotion(), BlockMotion()
    at_once = whole.push(known)
    assert at_once.shape == (40, FARTHEST + 1, len(RANKS))
    np.testing.assert_array_equal(
        at_once, np.concatenate([parts.push(known[n : n + 7]) for n in range(0, 40, 7)])
    )
