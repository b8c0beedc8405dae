"""Which frames of a clip are copied is a pure function of facts about frames and packets."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reelweave.curate.cut.smart.plan import (
    CHANGED,
    DAMAGED,
    LATE,
    LEAST_COPIED,
    LITTLE,
    MOST_BEFORE,
    MOST_REORDERED,
    NO_IDR,
    OPEN,
    VARIABLE,
    FrameFacts,
    Plan,
    Segment,
    plan,
)

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

P = FrameFacts(0, False, False, True, 0)


def group(begin: int, positions: list[int], *, entry: bool = True, key: bool = True) -> list[FrameFacts]:
    """A group of pictures whose frames, in shown order, have these places among its packets."""
    frames = [replace(P, position=begin + at) for at in positions]
    return [replace(frames[0], entry=entry, key=key), *frames[1:]]


def in_order(begin: int, frames: int, **kinds: bool) -> list[FrameFacts]:
    return group(begin, list(range(frames)), **kinds)


B_FRAMES = [0, 2, 3, 1, 5, 6, 4, 8, 9, 7]  # I b b P b b P b b P
OPEN_GROUP = [2, 1, 0, 3, 4, 5]  # leading pictures are shown before the key frame


def test_a_closed_group_is_copied_whole() -> None:
    assert plan(group(7, B_FRAMES)) == Plan((Segment(True, 0, 10, 7),))


def test_leading_pictures_of_the_entry_of_a_run_are_left_out_and_later_ones_copied() -> None:
    led = replace(P, position=20, entry=True, key=True, leading=2)
    before = [replace(P, position=22), replace(P, position=21)]
    behind = [replace(P, position=at) for at in (24, 25, 23, 27, 28, 26, 29)]
    again = [*(replace(P, position=at) for at in (32, 31)), replace(led, position=30)]
    found = plan([*before, led, *behind, *again])
    assert found.segments == (Segment(False, 0, 2), Segment(True, 2, 13, 20, 2))
    assert found.runs() == [range(20, 21), range(23, 33)]
    assert found.moved(7).runs() == [range(27, 28), range(30, 40)]
    assert plan([led, *behind, *again[:2]]).segments == (Segment(True, 0, 8, 20, 2), Segment(False, 8, 10))


def test_frames_before_an_idr_picture_and_behind_the_last_closed_run_are_encoded() -> None:
    frames = [*in_order(0, 3, entry=False, key=False), *group(3, B_FRAMES)]
    assert plan(frames).segments == (Segment(False, 0, 3), Segment(True, 3, 13, 3))
    longer = [*frames[:3], *group(3, [*B_FRAMES, 11, 12, 10])]
    assert plan(longer[:-1]).segments == (
        Segment(False, 0, 3),
        Segment(True, 3, 13, 3),
        Segment(False, 13, 15),
    )


def test_a_run_goes_on_over_key_frames_of_any_kind_while_it_is_closed() -> None:
    leading = [replace(P, position=11), replace(P, position=12), replace(P, position=10, key=True)]
    assert plan([*group(0, B_FRAMES), *leading]).segments == (Segment(True, 0, 13, 0),)
    # Of an open group half of which lies behind the end, nothing is closed.
    assert plan([*group(0, B_FRAMES), *leading[:2]]).segments == (
        Segment(True, 0, 10, 0),
        Segment(False, 10, 12),
    )


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (in_order(0, 30, entry=False), OPEN),
        (in_order(0, 30, entry=False, key=False), NO_IDR),
        (in_order(0, LEAST_COPIED - 1), LITTLE),
        ([replace(one, whole=False) for one in in_order(0, 30)], DAMAGED),
        ([replace(one, position=-1) for one in in_order(0, 30)], DAMAGED),
        ([replace(one, shown=2) for one in in_order(0, 30)], VARIABLE),
        ([replace(P, generation=1), *in_order(1, 30)], CHANGED),
    ],
)
def test_what_cannot_be_copied_has_a_reason(frames: list[FrameFacts], reason: str) -> None:
    assert plan(frames) == Plan((Segment(False, 0, len(frames)),), reason)
    assert plan(frames).mode == "encode"


@pytest.mark.parametrize(
    "change", [{"whole": False}, {"generation": 1}, {"shown": 0}, {"shown": 2}, {"position": -1}]
)
def test_a_frame_that_cannot_be_copied_ends_a_run_until_the_next_idr_picture(
    change: dict[str, object],
) -> None:
    frames = [*in_order(0, 20), *in_order(20, 20)]
    frames[12] = replace(frames[12], **change)
    assert plan(frames).segments == (
        Segment(True, 0, 12, 0),
        Segment(False, 12, 20),
        Segment(True, 20, 40, 20),
    )


def test_a_packet_that_shows_nothing_ends_a_run() -> None:
    frames = [*in_order(0, 12), *(replace(P, position=13 + at) for at in range(30)), *in_order(43, 20)]
    assert plan(frames).segments == (
        Segment(True, 0, 12, 0),
        Segment(False, 12, 42),
        Segment(True, 42, 62, 43),
    )


def test_frames_reordered_farther_than_decoders_do_are_encoded() -> None:
    far = [*range(10), *(60 - at for at in range(MOST_REORDERED + 5))]
    assert plan(group(0, far)).segments == (Segment(True, 0, 10, 0), Segment(False, 10, len(far)))


def film(draw: "DrawFn") -> list[FrameFacts]:
    """Groups of any order, some of them open or damaged, from which a span is cut anywhere."""
    from hypothesis import strategies as st

    frames: list[FrameFacts] = []
    for _ in range(draw(st.integers(1, 5))):
        begin, length = len(frames), draw(st.integers(1, 30))
        leading = min(draw(st.integers(0, 3)), length - 1)
        order = [*draw(st.permutations(range(1, leading + 1))), 0]
        while len(order) < length:
            size = min(draw(st.integers(1, 6)), length - len(order))
            order += [len(order) + at for at in draw(st.permutations(range(size)))]
        kind = draw(st.sampled_from(["idr", "key", "neither"]))
        found = [replace(P, position=begin + at) for at in order]
        marks = {"entry": kind == "idr", "key": kind != "neither", "leading": leading * (kind == "idr")}
        found[leading] = replace(found[leading], **marks)
        frames += found
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(frames) - 1))
        change = draw(st.sampled_from([{"whole": False}, {"shown": 0}, {"shown": 3}, {"generation": 1}]))
        frames[at] = replace(frames[at], **change)
    first = draw(st.integers(0, len(frames) - 1))
    return frames[first : draw(st.integers(first + 1, len(frames)))]


def test_a_limit_of_frames_before_the_first_run_refuses_a_clip_or_changes_nothing() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.composite(film)())
    def limited_is_free(frames: list[FrameFacts]) -> None:
        free, limited = plan(frames), plan(frames, MOST_BEFORE)
        first = next((segment.first for segment in free.segments if segment.copied), None)
        if first is not None and first <= MOST_BEFORE:
            assert limited == free
        else:
            assert limited.segments == ()
            assert limited.reason in (LATE, free.reason) or free.copied

    limited_is_free()


def test_segments_hold_each_frame_once_and_copies_are_closed_in_both_orders() -> None:
    from hypothesis import given
    from hypothesis import strategies as st

    from tests.properties import ANY_SPEED

    @ANY_SPEED
    @given(st.composite(film)())
    def closed(frames: list[FrameFacts]) -> None:
        planned = plan(frames)
        assert [segment.first for segment in planned.segments] == [
            0,
            *(one.last for one in planned.segments[:-1]),
        ]
        assert planned.segments[-1].last == len(frames)
        assert bool(planned.copied) == (not planned.reason)
        for segment in planned.segments:
            run = frames[segment.first : segment.last]
            assert run
            if not segment.copied:
                continue
            assert len(run) >= LEAST_COPIED
            assert run[0].entry
            assert {one.generation for one in run} == {frames[0].generation}
            assert all(one.whole and one.shown == 1 for one in run)
            # No packet between those of the run shows anything else, so none refers to what is not in the clip.
            assert sorted(one.position for one in run) == [at for packets in segment.runs for at in packets]

    closed()
