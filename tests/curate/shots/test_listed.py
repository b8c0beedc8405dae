"""Segments of a list as spans: exact, and every second of the film in exactly one span."""

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from reelweave.curate.frames.frame_times import Damage, FrameTimes
from reelweave.curate.shots import Transition
from reelweave.curate.shots.listed import MOST_LAYERS, frames_of, layers_of, listed_spans
from reelweave.curate.shots.spans import Span, SpanConfig
from reelweave.curate.sources.segments import Segment, sort_segments

ANY = SpanConfig(min_clip_s=0, max_clip_s=1000)


def line(frames: int, damage: tuple[Damage, ...] = (), breaks: tuple[int, ...] = ()) -> FrameTimes:
    return FrameTimes(np.arange(frames + 1) / 25, Fraction(25), True, damage, breaks=breaks)


def spans(segments: list[Segment], config: SpanConfig = ANY, **options: object) -> list[Span]:
    return listed_spans(line(200, **options), [], None, config, sort_segments(segments))


def kept(found: list[Span]) -> list[tuple[int, int, int | None]]:
    return [(span.first, span.last, span.segment) for span in found if span.fault is None]


def refused(found: list[Span]) -> list[tuple[float, float, str]]:
    return [
        (span.start_s, span.end_s, str(span.fault))
        for span in found
        if span.segment is not None and span.fault
    ]


def assert_whole(found: list[Span], end_s: float) -> None:
    assert found[0].start_s == 0
    assert found[-1].end_s == end_s
    for one, other in pairwise(found):
        assert (one.end_s, one.last) == (other.start_s, other.first)


@pytest.mark.parametrize(
    ("start", "end", "frames"),
    [
        (0, 1, (0, 25)),
        (0.04, 0.08, (1, 2)),
        (0.041, 0.081, (2, 3)),
        (0.0406, 0.12, (2, 3)),
        (0.0404, 0.1204, (1, 3)),  # rounded to a millisecond: the frames at .040 and .120
        (7.9, 8.3, (198, 200)),
    ],
)
def test_a_span_begins_with_the_first_frame_at_its_start_and_ends_before_its_end(
    start: float, end: float, frames: tuple[int, int]
) -> None:
    assert frames_of(Segment(start, end), line(200).times_s) == frames


def test_times_of_two_decimals_behind_each_other_share_no_frame() -> None:
    times_s = np.arange(301) / (30_000 / 1001)
    one, other = frames_of(Segment(1.001, 2.002), times_s), frames_of(Segment(2.002, 3.003), times_s)
    assert (one, other) == ((30, 60), (60, 90))


def test_the_seconds_between_segments_are_not_listed() -> None:
    found = spans([Segment(4, 6), Segment(10, 50, "frame")])
    assert kept(found) == [(10, 50, 0), (100, 150, 1)]
    assert [(one.first, one.last, one.stage) for one in found if one.fault] == [
        (0, 10, "not listed"),
        (50, 100, "not listed"),
        (150, 200, "not listed"),
    ]
    assert_whole(found, 8.0)


def test_of_overlapping_segments_the_one_that_begins_first_is_kept() -> None:
    found = spans([Segment(1, 3), Segment(2, 5), Segment(2.1, 2.3), Segment(3, 4), Segment(1, 2.5)])
    assert kept(found) == [(25, 63, 0), (75, 100, 4)]
    assert [one[:2] for one in refused(found)] == [(2.52, 2.52), (2.52, 3.0), (4.0, 5.0)]
    assert all("spans.overlapping=keep makes a clip of each" in reason for *_, reason in refused(found))
    assert {span.segment for span in found if span.segment is not None} == set(range(5))
    assert_whole(found, 8.0)


def test_overlapping_segments_are_kept_behind_the_adjacent_ones_where_asked() -> None:
    keep = ANY.model_copy(update={"overlapping": "keep"})
    listed = [Segment(1, 3), Segment(2, 5), Segment(2.1, 2.3), Segment(3, 4), Segment(1, 2.5), Segment(9, 10)]
    found = spans(listed, keep)
    assert kept(found) == [(25, 63, 0), (75, 100, 4), (25, 75, 1), (50, 125, 2), (53, 58, 3)]
    assert_whole(found[:-3], 8.0)
    layers = layers_of(found)
    assert [len(layer) for layer in layers] == [len(found) - 3, 1, 1, 1]
    assert kept([found[place] for layer in layers for place in layer]) == kept(found)
    ((_, _, reason),) = refused(found)
    assert "lies outside the film" in reason


def test_a_shot_within_two_overlapping_segments_is_one_clip() -> None:
    keep = ANY.model_copy(update={"overlapping": "keep", "listed": "shots"})
    cuts = [Transition(at - 1, at, "cut") for at in (75, 100)]
    found = listed_spans(line(200), cuts, None, keep, sort_segments([Segment(2, 5), Segment(1, 4)]))
    assert kept(found) == [(25, 75, 0), (75, 100, 0), (50, 75, 1), (100, 125, 1)]
    assert [one[2] for one in refused(found)] == [
        "the same shot is a clip of another listed segment, which overlaps this one"
    ]


def test_too_many_segments_over_each_other_are_refused() -> None:
    keep = ANY.model_copy(update={"overlapping": "keep"})
    found = spans([Segment(1, 2 + place / 10) for place in range(MOST_LAYERS + 3)], keep)
    assert len(kept(found)) == MOST_LAYERS + 1
    assert [f"more than {MOST_LAYERS} other segments" in one[2] for one in refused(found)] == [True, True]
    assert len(layers_of(found)) == MOST_LAYERS + 1


def test_a_span_that_is_listed_twice_with_two_captions_says_so() -> None:
    found = spans(
        [Segment(1, 3, caption="a boat"), Segment(1, 3, caption="a kite"), Segment(1, 3, caption="a boat")]
    )
    assert kept(found) == [(25, 75, 0)]
    ((start_s, end_s, reason),) = refused(found)
    assert start_s == end_s
    assert "listed twice" in reason


@pytest.mark.parametrize(
    ("segment", "rules", "words", "stage"),
    [
        (Segment(9, 12), ANY, "lies outside the film, which ends at 8.000 s", "listed"),
        (Segment(6, 8.6), ANY, "reaches beyond the film, which ends at 8.000 s", "listed"),
        (Segment(150, 201, "frame"), ANY, "reach beyond the film, which has 200 frames", "listed"),
        (
            Segment(150, 190, "frame", 30.0),
            ANY,
            "counted at 30 frames per second, and the film has 25",
            "listed",
        ),
        (Segment(1.001, 1.03), ANY, "holds no frame", "listed"),
        (
            Segment(1, 3.2),
            SpanConfig(min_clip_s=1, max_clip_s=2),
            "2.20 s is longer than spans.max_clip_s",
            "spans",
        ),
        (Segment(1, 2), SpanConfig(min_clip_s=1.5), "1.00 s is shorter than spans.min_clip_s", "spans"),
    ],
)
def test_what_becomes_no_clip_has_a_reason(
    segment: Segment, rules: SpanConfig, words: str, stage: str
) -> None:
    found = spans([segment], rules)
    assert kept(found) == []
    (one,) = [span for span in found if span.segment == 0]
    assert words in str(one.fault)
    assert (one.fault_state, one.stage) == ("filtered", stage)
    assert_whole(found, 8.0)


def test_frames_are_counted_at_the_rate_of_the_film() -> None:
    assert kept(spans([Segment(10, 60, "frame", 25.02)])) == [(10, 60, 0)]


def test_a_segment_begins_behind_a_short_begin_that_cannot_be_decoded() -> None:
    """As pieces have it that begin with an open group; up to half a second is missed, as at the end of a film."""
    found = spans([Segment(0, 2), Segment(2, 4)], damage=(Damage(0, 3, "an open group"),))
    assert kept(found) == [(3, 50, 0), (50, 100, 1)]
    assert (found[0].last, found[0].stage, found[0].fault) == (3, "decode", "an open group")
    assert_whole(found, 8)
    frames = spans([Segment(2, 50, unit="frame")], damage=(Damage(0, 3, "an open group"),))
    assert kept(frames) == [(3, 50, 0)]
    long = spans([Segment(0, 2), Segment(2, 4)], damage=(Damage(0, 15, "an open group"),))
    assert kept(long) == [(50, 100, 1)]
    assert refused(long)[0][:2] == (0, 2)
    within = spans([Segment(0, 0.1), Segment(0.12, 4)], damage=(Damage(0, 3, "an open group"),))
    assert kept(within) == [(3, 100, 1)]
    assert refused(within)[0][2].endswith(": an open group")
    assert_whole(within, 8)
    both = spans(
        [Segment(0, 2), Segment(0.04, 4)],
        ANY.model_copy(update={"overlapping": "keep"}),
        damage=(Damage(0, 3, "an open group"),),
    )
    assert kept(both) == [(3, 50, 0), (3, 100, 1)]
    assert_whole(both[:-1], 8)


def test_damage_gaps_and_jumps_within_a_segment_fail_it_alone() -> None:
    damaged = spans([Segment(0, 2), Segment(2, 4)], damage=(Damage(60, 62, "2 damaged packets"),))
    assert kept(damaged) == [(0, 50, 0)]
    assert [(one.stage, one.fault_state) for one in damaged if one.segment == 1] == [("decode", "failed")]
    jumped = spans([Segment(0, 2), Segment(2, 4)], breaks=(60,))
    assert kept(jumped) == [(0, 50, 0)]
    assert kept(spans([Segment(0, 2), Segment(2, 4)], breaks=(50,))) == [(0, 50, 0), (50, 100, 1)]
    times_s = np.arange(201) / 25
    times_s[60:] += 6
    held = listed_spans(
        FrameTimes(times_s, Fraction(25), False, ()), [], None, ANY, (Segment(0, 2), Segment(2, 9))
    )
    assert kept(held) == [(0, 50, 0)]
    assert [one.stage for one in held if one.segment == 1] == ["gaps"]


def test_a_whole_segment_ignores_shots_and_a_split_one_has_its_parts() -> None:
    cuts = [Transition(49, 50, "cut"), Transition(99, 120, "gradual")]
    segments = (Segment(1, 6), Segment(7, 8))
    whole = listed_spans(line(200), cuts, None, ANY, segments)
    assert kept(whole) == [(25, 150, 0), (175, 200, 1)]
    rules = SpanConfig(min_clip_s=1, max_clip_s=1.5, long_shots="stride", listed="shots")
    split = listed_spans(line(200), cuts, None, rules, segments)
    assert kept(split) == [(25, 50, 0), (50, 88, 0), (120, 150, 0), (175, 200, 1)]
    assert [(one.first, one.last, one.segment, one.stage) for one in split if one.fault] == [
        (0, 25, None, "not listed"),
        (88, 100, 0, "spans"),
        (100, 120, 0, "shots"),
        (150, 175, None, "not listed"),
    ]
    assert_whole(split, 8.0)


def test_a_film_that_is_cut_off_keeps_its_missing_seconds() -> None:
    found = listed_spans(line(200), [], 12.0, ANY, (Segment(1, 3), Segment(9, 11)))
    assert found[-1].end_s == 12.0
    assert found[-1].fault_state == "failed"
    assert "cut off" in str(found[-1].fault)


@pytest.mark.parametrize("mode", ["whole", "shots"])
def test_every_second_and_every_segment_is_accounted_for(mode: str) -> None:
    rng = random.Random(mode)
    for _ in range(300):
        segments = []
        for _ in range(rng.randrange(12)):
            start = rng.uniform(0, 9)
            segments.append(Segment(start, start + rng.choice([0.01, 0.5, 2, 5, 9])))
            if rng.random() < 0.3:
                first = rng.randrange(220)
                segments.append(Segment(first, first + rng.randrange(1, 120), "frame"))
        if not segments:
            continue
        damage = (Damage(60, 70, "x"),) if rng.random() < 0.3 else ()
        transitions = [Transition(89, 100, "gradual"), Transition(140, 141, "cut")]
        rules = SpanConfig(min_clip_s=rng.choice([0, 1]), max_clip_s=rng.choice([1, 4]), listed=mode)
        found = listed_spans(line(200, damage), transitions, None, rules, sort_segments(segments))
        assert_whole(found, 8.0)
        assert {one.segment for one in found} - {None} == set(range(len(sort_segments(segments))))
        assert all(one.first < one.last for one in found if one.fault is None)
