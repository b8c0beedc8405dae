"""Probabilities of candidates, and shots that end at changes which are likely enough to be transitions."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from reelweave.curate.shots import ShotConfig, Transition, make_detector
from reelweave.curate.shots.colour.calibration import probability_of, score_at
from reelweave.curate.shots.colour.detector import ColourDetector, ColourDetectorConfig
from reelweave.curate.shots.types import Candidate, CandidateKind
from tests.curate.shots.test_shots import mixed, scene, still

CUT = Transition(4, 5, "cut")


@pytest.mark.parametrize("kind", ["cut", "gradual", "dissolve"])
def test_probabilities_rise_with_the_score_and_thresholds_turn_them_back(kind: CandidateKind) -> None:
    found = [probability_of(Candidate(CUT, kind, score)) for score in np.linspace(0, 1, 50).tolist()]
    assert all(0 < low <= high < 1 for low, high in pairwise(found))
    for probability in (0.05, 0.3, 0.5, 0.9):
        score = score_at(kind, probability)
        assert probability_of(Candidate(CUT, kind, score)) == pytest.approx(probability)


def test_every_kind_has_a_probability_and_runs_need_surer_networks_than_cuts() -> None:
    by_kind = {
        kind: probability_of(Candidate(CUT, kind, 0.5))
        for kind in ("cut", "abrupt", "fade", "dissolve", "gradual")
    }
    assert by_kind["gradual"] == by_kind["dissolve"] < 0.2 < 0.7 < by_kind["cut"] < by_kind["abrupt"]


def blended_cut() -> NDArray[np.uint8]:
    """A cut that half a blend and movement around it make doubtful."""
    steps = [*still(1, 30), *mixed(scene(1), scene(1) * 0.6 + scene(2) * 0.4, 3), *still(2, 30) * 0.5 + 40]
    return np.clip(np.array(steps), 0, 255).astype(np.uint8)


def found_by(config: ShotConfig, video: NDArray[np.uint8]) -> tuple[list[Transition], list[Candidate]]:
    detector = make_detector(config, 25)
    for frame in video:
        detector.push(frame)
    assert isinstance(detector, ColourDetector)
    return detector.finish(), detector.candidates()


def test_a_doubted_change_ends_a_shot_once_it_is_more_probable_than_is_allowed() -> None:
    video = blended_cut()
    # With thresholds that nothing reaches, the change is a candidate alone.
    deaf = ColourDetectorConfig(cut_threshold=1.9, gradual_threshold=1.9)
    reported, candidates = found_by(ShotConfig(colour=deaf), video)
    doubted = [each for each in candidates if each.kind != "abrupt" and each.transition not in reported]
    assert doubted
    surest = max(doubted, key=probability_of)
    likely = probability_of(surest)
    below, above = (min(max(1 - likely + by, 0.001), 0.95) for by in (-0.02, 0.02))
    assert found_by(ShotConfig(colour=deaf, min_confidence=below), video)[0] == reported
    more, _ = found_by(ShotConfig(colour=deaf, min_confidence=above), video)
    assert surest.transition in more


def test_no_confidence_changes_nothing_and_the_network_alone_has_none() -> None:
    video = blended_cut()
    assert found_by(ShotConfig(), video) == found_by(ShotConfig(min_confidence=0.0), video)
    with pytest.raises(ValidationError, match=r"set shots\.detector=colour or hybrid"):
        ShotConfig(detector="transnetv2", min_confidence=0.5)
