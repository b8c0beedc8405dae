"""The cheap ways to the numbers of the shot detector give the numbers of the plain ways."""

from fractions import Fraction

import av
import numpy as np
import pytest

from curate.shots.cuts import cut_score
from curate.shots.dissolves import HALF_WIDTHS, Screen
from curate.shots.features import (
    HEIGHT,
    WIDTH,
    features,
    high_pass,
    structure_difference,
    unshifted_difference,
)
from curate.shots.history import History
from curate.shots.lags import Lags
from curate.shots.scale import Scaler, area_weights
from tests.curate.test_shots import mixed, scene, still


def pictures(count: int) -> np.ndarray:
    return np.stack([scene(seed) for seed in range(count)]).astype(np.uint8)


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


def test_a_cut_scores_the_same_whatever_is_asked_and_nothing_below() -> None:
    history = History(60)
    history.extend(features(np.concatenate([still(1, 20), still(2, 20)]).astype(np.uint8)))
    score = cut_score(history, 20, 0.2, 0.5, above=0.1)
    assert score is not None
    assert cut_score(history, 20, 0.2, 0.5, above=score - 1e-6) == score
    assert cut_score(history, 20, 0.2, 0.5, above=score) is None
    assert cut_score(history, 10, 0.2, 0.5, above=0.1) is None


def test_products_with_earlier_rows_are_the_same_in_pieces_and_at_once() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 7)).astype(np.float32)
    lags = Lags([0, 3, 11])
    products = np.concatenate([lags.push(rows[:4]), lags.push(rows[4:5]), lags.push(rows[5:])])
    for number in range(20):
        for place, lag in enumerate((0, 3, 11)):
            expected = rows[number] @ rows[number - lag] if number >= lag else 0
            assert products[number, place] == pytest.approx(expected, abs=1e-5)


def test_the_screen_lets_windows_around_a_dissolve_pass_and_no_other() -> None:
    frames = np.concatenate([still(1, 50), mixed(scene(1), scene(2), 7), still(2, 50)])
    passed = [
        (last - 2 * half, last)
        for last, halves in enumerate(Screen(0.2, 0.85).push(features(frames.astype(np.uint8))))
        for half in halves
    ]
    assert (53 - 5, 53 + 5) in passed
    assert all(first < 57 and last >= 50 for first, last in passed)
    assert all((last - first) // 2 in HALF_WIDTHS for first, last in passed)


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
