"""What the made videos say of whip pans and dips: those between shots are transitions, those inside one are none."""

from dataclasses import replace

import numpy as np
import pytest

from tests.bench.shot_corpus import LEARNT_FAST, Floats, Recipe, film
from tests.bench.shot_footage import Shot
from tests.bench.train_shots import IGNORED, labels

SHOTS = [
    Shot(f"drawn/{seed}", np.random.default_rng(seed).integers(60, 200, (1, 9, 16, 3)).repeat(60, axis=0))
    for seed in range(4)
]
"""Still pictures, each of a scene of its own."""


def recipe(kind: str, disturbance: str = "freeze") -> Recipe:
    return replace(
        LEARNT_FAST,
        kinds={kind: 1.0},
        disturbances=(disturbance,),
        eased=False,
        drawn_look=0.0,
        low_rate=0.0,
        dark=0.0,
    )


def unlike(frames: list[Floats], a: int, b: int) -> float:
    """The mean difference of two frames, but for grain, a logo and bars."""
    return float(np.abs(np.subtract(frames[a], frames[b])).mean())


@pytest.mark.parametrize("kind", ["smear", "dip"])
def test_frames_beside_a_whip_pan_or_dip_between_shots_are_clean(kind: str) -> None:
    frames, transitions, _ = film(SHOTS, 2, recipe(kind))
    assert {each["type"] for each in transitions} == {kind}
    for each in transitions:
        start, end = each["start_frame"], each["end_frame"]
        assert unlike(frames, start, start - 1) < 20 < unlike(frames, start, end)
        assert unlike(frames, end, end + 1) < 20 < unlike(frames, start, start + (end - start) // 2)
        cut, gradual = labels(len(frames), transitions, by_eye=False)
        assert set(gradual[start + 1 : end + 1]) == {1}
        assert set(cut[start + 1 : end + 1]) == {IGNORED}, "a cut is hidden inside"


@pytest.mark.parametrize("kind", ["jolt", "pan", "dim"])
def test_a_whip_pan_or_dip_inside_a_shot_is_noted_as_none(kind: str) -> None:
    frames, transitions, inside = film(SHOTS, 2, recipe("cut", kind))
    assert {each["type"] for each in transitions} == {"cut"}
    assert {each["type"] for each in inside} == {kind}
    for each in inside:
        start, end = each["start_frame"], each["end_frame"]
        assert not any(start <= cut["end_frame"] <= end for cut in transitions)
        assert unlike(frames, start - 1, (start + end) // 2) > 10
        if kind != "pan":
            assert unlike(frames, start - 1, end) < 20, "the same picture before and after"


def test_a_cut_into_a_shot_that_fades_in_is_a_cut_and_the_fade_none() -> None:
    frames, transitions, _ = film(SHOTS, 2, recipe("cut_to_fade"))
    assert {each["end_frame"] - each["start_frame"] for each in transitions} == {1}
    assert len(transitions) == 12
    cut, gradual = labels(len(frames), transitions, by_eye=False)
    assert cut.sum() == 12
    assert not gradual.any()
