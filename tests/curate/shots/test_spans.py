"""Every second of a source lies in exactly one span."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.curate.frames.frame_times import Damage, FrameTimes
from reelweave.curate.shots import Transition
from reelweave.curate.shots.spans import SpanConfig, spans

ANY = SpanConfig(min_clip_s=0)


def line(frames: int, damage: tuple[Damage, ...] = ()) -> FrameTimes:
    return FrameTimes(np.arange(frames + 1) / 25, Fraction(25), True, damage)


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
    found = spans(line(200), [cut(50), cut(120)], 8.0, ANY)
    assert bounds(found) == [(0, 50), (50, 120), (120, 200)]
    assert all(span.fault is None for span in found)


def test_blended_frames_of_a_dissolve_are_filtered_on_their_own() -> None:
    found = spans(line(200), [Transition(89, 110, "gradual")], None, ANY)
    assert bounds(found) == [(0, 90), (90, 110), (110, 200)]
    assert found[1].fault_state == "filtered"
    assert_side_by_side(found, 8.0)


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [(10, [10]), (10.04, [8.04, 2]), (11, [9, 2]), (12, [10, 2]), (21.52, [10, 9.52, 2]), (25, [10, 10, 5])],
)
def test_the_last_part_but_one_gives_way(seconds: float, parts: list[float]) -> None:
    found = spans(line(round(seconds * 25)), [], None, SpanConfig(min_clip_s=2, max_clip_s=10))
    assert [span.end_s - span.start_s for span in found] == pytest.approx(parts)
    assert all(span.fault is None for span in found)


def test_a_part_gives_way_only_while_it_is_long_enough_itself() -> None:
    found = spans(line(11 * 25), [], None, SpanConfig(min_clip_s=6, max_clip_s=10))
    assert bounds(found) == [(0, 250), (250, 275)]
    assert [span.fault_state for span in found] == ["", "filtered"]


def test_long_shots_become_equal_parts() -> None:
    rules = SpanConfig(min_clip_s=0, max_clip_s=10, long_shots="equal")
    found = spans(line(25 * 25), [], None, rules)
    assert [span.last - span.first for span in found] == [209, 208, 208]
    assert_side_by_side(found, 25.0)


def test_damage_parts_clean_runs_and_is_failed() -> None:
    found = spans(line(200, (Damage(60, 80, "bad packets"),)), [cut(40), cut(70), cut(150)], None, ANY)
    assert bounds(found) == [(0, 40), (40, 60), (60, 80), (80, 150), (150, 200)]
    assert [span.fault_state for span in found] == ["", "", "failed", "", ""]
    assert_side_by_side(found, 8.0)


def test_a_transition_reaching_into_damage_is_cut_there() -> None:
    found = spans(line(200, (Damage(100, 200, "x"),)), [Transition(80, 120, "gradual")], None, ANY)
    assert bounds(found) == [(0, 81), (81, 100), (100, 200)]


def test_a_promise_that_is_not_kept_is_a_span_that_failed() -> None:
    found = spans(line(100), [], 8.0, ANY)
    assert (found[-1].start_s, found[-1].end_s, found[-1].fault_state) == (4.0, 8.0, "failed")
    assert "promises 8.00 s" in str(found[-1].fault)


def test_a_promise_missed_by_rounding_is_none() -> None:
    assert len(spans(line(100), [], 4.3, ANY)) == 1


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
        config = SpanConfig(
            min_clip_s=float(rng.choice([0.0, 0.1, 0.2])),
            max_clip_s=float(rng.uniform(0.2, 9)),
            crop_s=float(rng.choice([0.0, 0.1, 0.5])),
            long_shots=str(rng.choice(["full", "equal", "stride"])),
        )
        found = spans(line(frames, damage), transitions, None, config)
        assert_side_by_side(found, frames / 25)
        assert all(span.last > span.first for span in found)
        for span in found:
            if span.fault is None:
                assert (
                    config.min_clip_s - 1e-3 <= span.end_s - span.start_s <= config.max_clip_s + 0.04 + 1e-9
                )


def test_short_shots_are_filtered_with_their_length() -> None:
    found = spans(line(200), [cut(30)], None, SpanConfig(min_clip_s=2.0))
    assert [span.fault_state for span in found] == ["filtered", ""]
    assert (found[0].stage, found[0].score, found[0].threshold) == ("spans", 1.2, 2.0)
    assert "spans.min_clip_s" in str(found[0].fault)


def test_a_shot_of_exactly_the_least_length_is_kept() -> None:
    found = spans(line(50), [], None, SpanConfig(min_clip_s=2.0))
    assert found[0].fault is None


def test_both_ends_of_every_shot_are_cropped_and_accounted_for() -> None:
    found = spans(line(200), [cut(100)], None, SpanConfig(min_clip_s=0, crop_s=0.5))
    assert [(span.first, span.last, span.fault is None) for span in found] == [
        (0, 13, False), (13, 87, True), (87, 100, False), (100, 113, False), (113, 187, True), (187, 200, False),
    ]  # fmt: skip
    assert_side_by_side(found, 8.0)


def test_a_shot_that_cropping_uses_up_is_no_clip() -> None:
    found = spans(line(20), [], None, SpanConfig(min_clip_s=0, crop_s=0.5))
    assert [span.fault_state for span in found] == ["filtered"]


def test_stride_leaves_a_remainder() -> None:
    rules = SpanConfig(min_clip_s=2.0, max_clip_s=4.0, long_shots="stride")
    found = spans(line(230), [], None, rules)
    assert [(span.last - span.first, span.fault_state) for span in found] == [
        (100, ""), (100, ""), (30, "filtered"),
    ]  # fmt: skip


def test_rules_that_allow_no_clip_are_refused() -> None:
    with pytest.raises(ValidationError, match="no clip could be made"):
        SpanConfig(min_clip_s=5, max_clip_s=4)
