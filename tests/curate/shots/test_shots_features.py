"""The cheap ways to the numbers of the shot detector give the numbers of the plain ways."""

from fractions import Fraction

import av
import numpy as np
import pytest

from reelweave.curate.shots.colour.differences import FrameDifferences
from reelweave.curate.shots.colour.features import (
    HEIGHT,
    STRUCTURE_FLOOR,
    WIDTH,
    Features,
    features,
    high_pass,
    structure_difference,
)
from reelweave.curate.shots.colour.probabilities import TransitionProbabilities
from reelweave.curate.shots.scale import Scaler, area_weights
from tests.curate.shots.test_shots import mixed, scene, still


def pictures(count: int) -> np.ndarray:
    return np.stack([scene(seed) for seed in range(count)]).astype(np.uint8)


def unshifted_difference(a: Features, b: Features) -> float:
    return float(1 - a.fine @ b.fine - STRUCTURE_FLOOR / np.sqrt(a.energy * b.energy))


def test_a_frame_has_the_same_features_in_any_company() -> None:
    frames = pictures(5)
    frames[2, :6] = frames[2, -6:] = 0  # one of them with bars
    for number, together in enumerate(features(frames)):
        (alone,) = features(frames[number : number + 1])
        assert together.energy == pytest.approx(alone.energy, rel=1e-5)
        assert together.contrast == pytest.approx(alone.contrast, rel=1e-5)
        for name in ("fine", "layout", "colours", "spectrum"):
            np.testing.assert_allclose(getattr(together, name), getattr(alone, name), atol=1e-4)


def test_high_pass_is_the_picture_less_the_mean_of_the_box_around() -> None:
    luma = np.random.default_rng(0).uniform(0, 255, (2, HEIGHT, WIDTH)).astype(np.float32)
    padded = np.pad(luma, ((0, 0), (3, 3), (3, 3)), mode="edge")
    boxes = np.lib.stride_tricks.sliding_window_view(padded, (7, 7), axis=(1, 2)).mean(axis=(3, 4))
    np.testing.assert_allclose(high_pass(luma), luma - boxes, atol=1e-3)


def test_grey_has_no_colour_whatever_its_shade() -> None:
    shades = np.arange(0, 256, 5, dtype=np.uint8)[:, None, None, None].repeat(HEIGHT, 1).repeat(WIDTH, 2)
    colours = np.stack([each.colours.reshape(4, 3, -1) for each in features(shades.repeat(3, 3))])
    assert np.ptp(colours[:, :, 1:], axis=0).max() == 0


def test_structure_differs_by_the_peak_of_the_correlation_over_small_shifts() -> None:
    a, b = features(pictures(2))
    correlation = np.fft.irfft2(a.spectrum * b.spectrum.conj(), s=(HEIGHT, WIDTH))
    peak = max(correlation[y, x] for y in range(-8, 9) for x in range(-12, 13))
    expected = 1 - peak - 4 / np.sqrt(a.energy * b.energy)
    assert structure_difference(a, b) == pytest.approx(expected, abs=1e-5)
    assert structure_difference(a, b) <= unshifted_difference(a, b)


def test_frames_are_compared_with_earlier_ones_the_same_in_pieces_and_at_once() -> None:
    found = features(pictures(40))
    whole = FrameDifferences().push(found)
    pieces = FrameDifferences()
    parts = np.concatenate([pieces.push(found[:3]), pieces.push(found[3:4]), pieces.push(found[4:])])
    np.testing.assert_allclose(parts, whole, atol=1e-4)
    np.testing.assert_array_equal(FrameDifferences([1, 5, 81]).push(found), whole[:, [1, 5, 81]])


def test_a_difference_is_that_of_the_two_frames_and_before_the_first_stands_the_first() -> None:
    found = features(pictures(6))
    differences = FrameDifferences().push(found)
    for later, earlier in ((5, 0), (5, 3), (2, 1)):
        expected = unshifted_difference(found[earlier], found[later])
        assert differences[later, later - earlier, 0] == pytest.approx(expected, abs=0.01)
    np.testing.assert_allclose(differences[:, 0], 0, atol=3e-3)
    np.testing.assert_allclose(differences[0, 1:], 0, atol=3e-3)
    np.testing.assert_allclose(differences[2, 3:], differences[2, 2:3].repeat(82, 0), atol=1e-4)


def test_a_wipe_changes_its_blocks_one_after_the_other() -> None:
    a, b = pictures(2)
    half = a.copy()
    half[:, :32] = b[:, :32]
    calm, changed = FrameDifferences().push(features(np.stack([a, half])))[1, 1, [3, 6]]
    assert calm < 0.2
    assert changed > 0.8


def test_chances_are_the_same_however_the_frames_come() -> None:
    frames = np.concatenate([still(1, 40), mixed(scene(1), scene(2), 7), still(2, 60)]).astype(np.uint8)
    found = features(frames)
    whole, pieces = TransitionProbabilities(), TransitionProbabilities()
    whole.push(found)
    for first in range(0, len(found), 16):
        pieces.push(found[first : first + 16])
    for chances in (whole, pieces):
        chances.finish()
    count = len(found)
    np.testing.assert_allclose(whole.cuts(0, count), pieces.cuts(0, count), atol=3e-3)
    expected = whole.gradual(0, count)
    parts = [pieces.gradual(first, min(first + 10, count)) for first in range(0, count, 10)]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=3e-3)


@pytest.mark.parametrize("size", [(64, 36), (48, 27)])
def test_a_kept_scaler_gives_what_a_new_one_gives_also_when_the_size_changes(size: tuple[int, int]) -> None:
    scale = Scaler(size)
    for width, height, number in ((320, 180, 0), (320, 180, 1), (202, 406, 2)):
        picture = scene(number, width, height).astype(np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, 25)
        expected = frame.reformat(*size, format="rgb24", interpolation="AREA").to_ndarray()
        np.testing.assert_array_equal(scale(frame), expected)


def test_area_weights_take_the_mean_of_what_a_pixel_covers() -> None:
    np.testing.assert_allclose(area_weights(4, 2), [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(area_weights(4, 3) * 4, [[3, 1, 0, 0], [0, 2, 2, 0], [0, 0, 1, 3]], atol=1e-6)
