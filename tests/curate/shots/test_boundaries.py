"""Each span says by what it ends, and each clip which change it still holds."""

from fractions import Fraction

import numpy as np

from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.shots.boundaries import FORCED, LEAST, candidates_of, name_boundaries
from reelweave.curate.shots.choice import ShotConfig, make_detector
from reelweave.curate.shots.colour.calibration import probability_of
from reelweave.curate.shots.fixed import FixedStrideConfig, FixedStrideDetector
from reelweave.curate.shots.spans import Span
from reelweave.curate.shots.types import Candidate, Transition
from tests.curate.shots.test_shots import still

FPS = 25
CUT = Transition(49, 50, "cut")
DISSOLVE = Transition(99, 110, "gradual")


def line(frames: int = 200, breaks: tuple[int, ...] = ()) -> FrameTimes:
    return FrameTimes(np.arange(frames + 1) / FPS, Fraction(FPS), True, (), breaks=breaks)


def span(first: int, last: int, fault: str | None = None) -> Span:
    return Span(first, last, first / FPS, last / FPS, fault)


def test_boundaries_have_kind_and_probability_of_what_was_weighed_there() -> None:
    weighed = [
        Candidate(CUT, "abrupt", 0.9),
        Candidate(CUT, "cut", 0.01),  # the likeliest of a place counts
        Candidate(DISSOLVE, "dissolve", 0.98),
    ]
    parts = [span(0, 50), span(50, 100), span(100, 110, "blended"), span(110, 160), span(160, 200)]
    named = name_boundaries(parts, [CUT, DISSOLVE], weighed, line())
    assert [(each.ends_by, each.ends_probability) for each in named] == [
        ("cut", round(probability_of(weighed[0]), 4)),
        ("dissolve", round(probability_of(weighed[2]), 4)),
        ("", None),
        ("", None),  # divided by its length alone
        ("", None),
    ]
    assert not any(each.inside for each in named)


def test_a_change_of_size_or_clock_is_no_transition_and_what_others_found_has_no_probability() -> None:
    jump, found = Transition(79, 80, "cut"), Transition(119, 125, "gradual")
    named = name_boundaries(
        [span(0, 80), span(80, 120), span(120, 125, "blended"), span(125, 200)],
        [jump, found],
        [],
        line(breaks=(80,)),
    )
    assert [(each.ends_by, each.ends_probability) for each in named[:2]] == [
        (FORCED, None),
        ("gradual", None),
    ]


def test_the_likeliest_change_wholly_inside_a_clip_is_named() -> None:
    doubted = [
        Candidate(Transition(20, 21, "cut"), "cut", 0.1),
        Candidate(Transition(30, 31, "cut"), "cut", 0.2),
        Candidate(Transition(48, 52, "gradual"), "gradual", 0.9),  # across the end of a clip
        Candidate(Transition(143, 144, "cut"), "cut", 0.3),  # part of the transition before it
        Candidate(Transition(120, 121, "cut"), "cut", 0.3),  # in a span that is no clip
        Candidate(Transition(150, 151, "cut"), "cut", 0.001),
    ]
    parts = [span(0, 50), span(50, 100), span(100, 140, "short"), span(140, 200)]
    named = name_boundaries(parts, [Transition(139, 140, "cut")], doubted, line())
    assert [(each.inside, each.inside_s) for each in named] == [
        ("cut", 31 / FPS),
        ("", None),
        ("", None),
        ("", None),
    ]
    assert named[0].inside_probability == round(probability_of(doubted[1]), 4)
    assert probability_of(doubted[5]) < LEAST


def test_at_high_rates_candidates_lie_where_the_transitions_do() -> None:
    detector = make_detector(ShotConfig(), fps=60)
    for frame in np.concatenate([still(1, 41), still(2, 80)]):
        detector.push(np.clip(frame, 0, 255).astype(np.uint8))
    (cut,) = detector.finish()
    assert cut in [each.transition for each in candidates_of(detector)]
    assert candidates_of(FixedStrideDetector(FixedStrideConfig(stride_s=1), 25)) == []
