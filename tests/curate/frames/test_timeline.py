"""Frame times and rates, from lists of ticks."""

from fractions import Fraction

import numpy as np
import pytest

from reelweave.curate.frames.frame_times import Damage, clean_runs, source_frames, timeline


def line(pts, tick=Fraction(1, 90000), last=None, stated=None, damage=(), max_fps=60.0):
    return timeline(pts, tick, last, stated, damage, max_fps)


@pytest.mark.parametrize(
    ("stated", "rate"),
    [
        *((rate, rate) for rate in ("24", "25", "30000/1001", "25/2", "21000/701")),
        # 30 whose duration is rounded to microseconds: `filters.max_fps=30` keeps it.
        ("1000000/33333", "30"),
    ],
)
def test_a_constant_rate_is_found_although_ticks_round(stated: str, rate: str) -> None:
    stamps = [round(1000 * number / Fraction(stated)) for number in range(900)]
    made = line(stamps, Fraction(1, 1000), stated=Fraction(stated))
    assert made.constant
    assert made.rate == Fraction(rate)
    assert np.array_equal(source_frames(made.times_s, 100, 400, Fraction(rate)), np.arange(100, 400))


def test_a_stated_rate_that_stamps_tell_from_a_usual_one_is_kept() -> None:
    stated = Fraction(1000000, 33333)
    made = line([33333 * number for number in range(108000)], Fraction(1, 1000000), stated=stated)
    assert (made.rate, made.constant) == (stated, True)


def test_a_constant_rate_is_found_when_the_container_states_another() -> None:
    made = line([3600 * number for number in range(100)], stated=Fraction(30))
    assert (made.rate, made.constant) == (25, True)


def test_a_start_other_than_zero_does_not_matter() -> None:
    made = line([900000 + 3600 * number for number in range(50)], stated=Fraction(25))
    assert made.times_s[0] == 0
    assert made.times_s[-1] == pytest.approx(2.0)


def test_disordered_times_give_way_to_the_stated_rate() -> None:
    made = line([0, 3, 1, 2, 5, 4], Fraction(1, 25), stated=Fraction(25))
    assert made.constant
    assert made.times_s == pytest.approx(np.arange(7) / 25)


@pytest.mark.parametrize(
    ("tick", "stated", "rate"),
    [
        ("1/50", "50", "25"),
        ("1/1000", "24000/1001", "24000/1001"),
        ("1/1000", "293/12", "24000/1001"),
        ("1/25", "25", "25"),
    ],
)
def test_times_of_coding_tell_the_rate_where_the_stated_one_is_that_of_ticks_or_an_average(
    tick: str, stated: str, rate: str
) -> None:
    coded = [4 * group + place for group in range(25) for place in (0, 3, 1, 2)]
    pts = [round(number / Fraction(rate) / Fraction(tick)) for number in coded]
    made = line(pts, Fraction(tick), stated=Fraction(stated))
    assert (made.rate, made.constant) == (Fraction(rate), True)


def test_missing_times_give_way_to_the_stated_rate() -> None:
    made = line([0, None, 2], Fraction(1, 25), stated=Fraction(25))
    assert made.frames == 3
    assert made.times_s[-1] == pytest.approx(3 / 25)


def test_dropped_still_frames_are_shown_longer_at_the_cameras_rate() -> None:
    pts = [3000 * number for number in range(60) if number not in (20, 21, 22)]
    made = line(pts, last=3000, stated=Fraction(28))
    assert not made.constant
    assert made.rate == 30
    shown = source_frames(made.times_s, 0, 57, made.rate)
    assert len(shown) == 60
    assert list(shown[18:25]) == [18, 19, 19, 19, 19, 20, 21]


def test_a_rate_beyond_the_limit_is_lowered() -> None:
    pts = np.cumsum([750, 800, 700, 1500] * 50).tolist()
    assert line(pts, max_fps=60.0).rate == 60


def test_one_frame_lasts_one_slot() -> None:
    made = line([0], stated=Fraction(30000, 1001))
    assert made.frames == 1
    assert list(source_frames(made.times_s, 0, 1, made.rate)) == [0]


def test_damage_does_not_spoil_the_rate_of_clean_runs() -> None:
    pts = [3600 * number for number in range(40)] + [3600 * number + 77 for number in range(70, 100)]
    made = line(pts, stated=Fraction(24), damage=(Damage(40, 43, "lost"),))
    assert (made.rate, made.constant) == (25, True)


def test_clips_last_as_long_as_their_span_within_half_a_frame() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        gaps = rng.choice([1500, 3000, 3000, 9000, 21000], 80)
        made = line([0, *np.cumsum(gaps).tolist()], last=3000)
        first, last = sorted(rng.choice(81, 2, replace=False).tolist())
        slots = source_frames(made.times_s, first, last, made.rate)
        span_s = made.times_s[last] - made.times_s[first]
        assert abs(len(slots) / made.rate - span_s) <= 0.5 / made.rate + 1e-9 or len(slots) == 1
        assert first <= slots.min()
        assert slots.max() < last
        assert (np.diff(slots) >= 0).all()


def test_clean_runs_leave_damage_out() -> None:
    damage = (Damage(0, 2, ""), Damage(5, 6, ""), Damage(9, 10, ""))
    assert clean_runs(10, damage) == [(2, 5), (6, 9)]
    assert clean_runs(3, ()) == [(0, 3)]


@pytest.mark.parametrize("pts", [[0, 3600, 7200], [0, None, 2]])
def test_a_timeline_remembers_that_its_frames_hold_two_fields(pts) -> None:
    assert timeline(pts, Fraction(1, 90000), None, Fraction(25), (), 60.0, deinterlace=True).deinterlace
    assert not line(pts, stated=Fraction(25)).deinterlace


STEADY = [3600 * number for number in range(200)]


def changed(change) -> list[int | None]:
    pts: list[int | None] = list(STEADY)
    change(pts)
    return pts


def set_at(place: int, *values: int | None):
    return lambda pts: pts.__setitem__(slice(place, place + len(values)), values)


@pytest.mark.parametrize(
    "change",
    [
        set_at(100, STEADY[98]),  # one steps back
        set_at(100, STEADY[99]),  # one says what the one before said
        set_at(100, STEADY[101], STEADY[100]),  # two changed places
        set_at(100, STEADY[100] + 90_000),  # one is a second late
        set_at(0, 7_000_000),  # the first one is of another clock
        set_at(199, 90_000 * 86_400),  # the last one is a day late
        set_at(100, None, None),  # two are missing
        set_at(100, 0, 1, 2),
    ],
)
def test_single_wrong_stamps_are_put_where_they_belong(change) -> None:
    made = line(changed(change), stated=Fraction(24))
    assert (made.rate, made.constant, made.breaks) == (25, True, made.breaks)
    assert np.abs(made.times_s - np.arange(201) / 25).max() <= 0.5 / 25


@pytest.mark.parametrize("off", [-10, -6, 6, 10])
@pytest.mark.parametrize("wrong", [1, 2, 5])
@pytest.mark.parametrize("begin", [0, 1, 20])
def test_wrong_stamps_in_every_group_of_pictures_do_not_stretch_a_film(
    off: int, wrong: int, begin: int
) -> None:
    """What follows keeps its time: a clock that steps back would stay back."""
    stamps = [
        4 * frame + (off if frame >= 48 and begin <= frame % 48 < begin + wrong else 0)
        for frame in range(300)
    ]
    made = line(stamps, Fraction(1, 100), stated=Fraction(25))
    assert (made.constant, made.rate, made.breaks) == (True, 25, ())
    assert made.times_s == pytest.approx(np.arange(301) / 25, abs=0.011)


@pytest.mark.parametrize("is_end", [False, True])
def test_wrong_stamps_at_an_end_do_not_make_a_film_longer(is_end: bool) -> None:
    """Without the first ones it would begin before its first stamp."""
    stamps = [0, 33, 62, 67, 133, 62, *(round(100 / 3 * frame) for frame in range(4, 63))]
    if is_end:
        stamps = [stamps[-1] - stamp for stamp in reversed(stamps)]
    made = line(stamps, Fraction(1, 1000), stated=Fraction(30))
    assert made.times_s[-1] == pytest.approx(max(stamps) / 1000 + 1 / 30, abs=0.02)
    assert len(made.times_s) == len(stamps) + 1


@pytest.mark.parametrize("back", [2, 6, 10, 30])
def test_a_clock_that_steps_back_for_good_delays_what_follows(back: int) -> None:
    stamps = [4 * frame - (back if frame >= 150 else 0) for frame in range(300)]
    made = line(stamps, Fraction(1, 100), stated=Fraction(25))
    assert made.times_s[-1] >= 12 - back / 100 - 1e-3
    assert np.diff(made.times_s).max() <= 0.06


def test_times_far_from_a_wrong_stamp_keep_their_word_at_a_variable_rate() -> None:
    pts = np.cumsum(np.random.default_rng(1).integers(1500, 9000, 300))
    true_s = (pts - pts[0]) / 90_000
    wrong = pts.tolist()
    wrong[150] = wrong[146]
    made = line(wrong, stated=Fraction(30), last=3000)
    assert not made.constant
    others = np.arange(300) != 150
    assert made.times_s[:-1][others] == pytest.approx(true_s[others])
    assert true_s[149] < made.times_s[150] < true_s[151]


@pytest.mark.parametrize("jump", [-150, -9, 90 * 25, 26 * 3600 * 25])
def test_a_clock_that_starts_anew_or_jumps_is_joined_where_it_breaks(jump: int) -> None:
    def change(pts: list) -> None:
        pts[120:] = [tick + 3600 * jump for tick in pts[120:]]

    made = line(changed(change), stated=Fraction(24))
    assert (made.rate, made.constant) == (25, True)
    assert made.times_s == pytest.approx(np.arange(201) / 25)
    assert made.shifts_s is not None
    assert made.shifts_s[100] == 0
    assert made.shifts_s[-1] == pytest.approx(-jump / 25)
    assert made.breaks == (() if jump == -9 else (120,))


def test_two_recordings_joined_twice_have_two_breaks() -> None:
    made = line([*STEADY, *STEADY, *STEADY], stated=Fraction(25))
    assert made.breaks == (200, 400)
    assert made.times_s == pytest.approx(np.arange(601) / 25)


def test_a_picture_that_is_held_on_purpose_is_no_jump() -> None:
    pts = [*STEADY[:100], *(tick + 90_000 * 120 for tick in STEADY[100:])]
    durations = [3600] * 99 + [90_000 * 120] + [3600] * 100
    made = timeline(pts, Fraction(1, 90000), 3600, Fraction(25), (), 60.0, durations=durations)
    assert made.breaks == ()
    assert made.times_s[-1] == pytest.approx(200 / 25 + 120)
