"""Every second of a source lies in exactly one span."""

from fractions import Fraction
from itertools import pairwise

import numpy as np

from curate.shots import Transition
from curate.spans import SpanConfig, spans
from curate.timeline import Damage, Timeline


def line(frames: int, damage: tuple[Damage, ...] = ()) -> Timeline:
    return Timeline(np.arange(frames + 1) / 25, Fraction(25), True, damage)


def cut(frame: int) -> Transition:
    return Transition(frame - 1, frame, "cut")


def bounds(found) -> list[tuple[int, int]]:
    return [(span.first, span.last) for span in found]


def assert_side_by_side(found, end_s: float) -> None:
    assert found[0].start_s == 0
    assert found[-1].end_s == end_s
    for one, other in pairwise(found):
        assert one.end_s == other.start_s


def test_hard_cuts_part_shots() -> None:
    found = spans(line(200), [cut(50), cut(120)], 8.0, SpanConfig())
    assert bounds(found) == [(0, 50), (50, 120), (120, 200)]
    assert all(span.fault is None for span in found)


def test_blended_frames_of_a_dissolve_are_filtered_on_their_own() -> None:
    found = spans(line(200), [Transition(89, 110, "gradual")], None, SpanConfig())
    assert bounds(found) == [(0, 90), (90, 110), (110, 200)]
    assert found[1].fault_state == "filtered"
    assert_side_by_side(found, 8.0)


def test_long_shots_become_equal_parts() -> None:
    found = spans(line(25 * 25), [], None, SpanConfig(max_clip_s=10))
    assert [span.last - span.first for span in found] == [209, 208, 208]
    assert_side_by_side(found, 25.0)


def test_damage_parts_clean_runs_and_is_failed() -> None:
    found = spans(
        line(200, (Damage(60, 80, "bad packets"),)), [cut(40), cut(70), cut(150)], None, SpanConfig()
    )
    assert bounds(found) == [(0, 40), (40, 60), (60, 80), (80, 150), (150, 200)]
    assert [span.fault_state for span in found] == ["", "", "failed", "", ""]
    assert_side_by_side(found, 8.0)


def test_a_transition_reaching_into_damage_is_cut_there() -> None:
    found = spans(line(200, (Damage(100, 200, "x"),)), [Transition(80, 120, "gradual")], None, SpanConfig())
    assert bounds(found) == [(0, 81), (81, 100), (100, 200)]


def test_a_promise_that_is_not_kept_is_a_span_that_failed() -> None:
    found = spans(line(100), [], 8.0, SpanConfig())
    assert (found[-1].start_s, found[-1].end_s, found[-1].fault_state) == (4.0, 8.0, "failed")
    assert "promises 8.00 s" in str(found[-1].fault)


def test_a_promise_missed_by_rounding_is_none() -> None:
    assert len(spans(line(100), [], 4.3, SpanConfig())) == 1


def test_random_sources_are_always_covered() -> None:
    rng = np.random.default_rng(11)
    for _ in range(200):
        frames = int(rng.integers(1, 400))
        marks = sorted(
            rng.choice(frames + 1, min(frames + 1, int(rng.integers(0, 9))), replace=False).tolist()
        )
        damage = tuple(Damage(a, b, "x") for a, b in list(pairwise(marks))[::2] if rng.random() < 0.5)
        edges = sorted(rng.integers(0, frames, int(rng.integers(0, 5))).tolist())
        transitions = []
        for edge in edges:
            if not transitions or edge >= transitions[-1].end_frame:
                end = min(frames - 1, edge + int(rng.integers(1, 20)))
                if end > edge:
                    transitions.append(Transition(edge, end, "cut" if end == edge + 1 else "gradual"))
        found = spans(
            line(frames, damage), transitions, None, SpanConfig(max_clip_s=float(rng.uniform(0.2, 9)))
        )
        assert_side_by_side(found, frames / 25)
        assert all(span.last > span.first for span in found)
