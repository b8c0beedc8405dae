"""ScaleFusion's schedule: complete and in order for all numbers; the printed one is not."""

import itertools
from collections import Counter

import pytest

from reelweave.loader.errors import UsageError
from reelweave.train.sampling.scalefusion.schedule import (
    DEFAULT,
    DSP,
    Compute,
    PieceLaunch,
    Slicing,
    Wait,
    schedule,
)
from tests.train.sampling.scalefusion.printed_scalefusion import printed
from tests.train.sampling.scalefusion.verify import violations

ALL = [
    Slicing(N_T, N_S, L_T, L_S)
    for N_T, N_S in itertools.product(range(1, 7), repeat=2)
    for L_T, L_S in itertools.product(range(N_T + 1), range(N_S + 1))
]


def test_every_schedule_is_accepted():
    assert len(ALL) == 27**2
    assert [slicing for slicing in ALL if violations(schedule(slicing, 2), slicing, 2)] == []
    assert violations(schedule(DEFAULT, 28), DEFAULT, 28) == []
    assert schedule(DEFAULT, 0) == violations([], DEFAULT, 0) == []


def test_the_printed_schedule_loses_20_pieces_at_its_defaults():
    assert Counter(fault for fault, _ in violations(printed(DEFAULT, 2), DEFAULT, 2)) == {"missing": 20}
    literal = violations(printed(DEFAULT, 2, literal=True), DEFAULT, 2)
    assert Counter(fault for fault, _ in literal) == {"missing": 21, "twice": 1}
    # It is complete only where nothing is lifted, or everything.
    assert {
        (slicing.lifted_temporal, slicing.lifted_spatial)
        for slicing in ALL
        if slicing[:2] == (4, 4) and not violations(printed(slicing, 2), slicing, 2)
    } == {(0, 0), (4, 4)}


@pytest.mark.parametrize("slicing", [DSP, DEFAULT, Slicing(2, 3, 0, 0), Slicing(3, 1, 3, 1)], ids=str)
def test_no_operation_may_be_lost_repeated_or_moved_too_far(slicing):
    operations = schedule(slicing, 2)
    for number, operation in enumerate(operations):
        rest = operations[:number] + operations[number + 1 :]
        lost = violations(rest, slicing, 2)
        assert ("missing", operation) in lost
        if isinstance(operation, Wait):
            assert ("without a wait", Compute(operation.layer, operation.slice)) in lost
        if isinstance(operation, Compute):
            of_next = [at for at in rest if isinstance(at, PieceLaunch) and at.layer == operation.layer + 1]
            early = {at for fault, at in lost if fault == "before its producer"}
            assert early == {at for at in of_next if at.part == operation.slice}
        assert ("twice", operation) in violations([*operations, operation], slicing, 2)
        if isinstance(operation, PieceLaunch):
            assert ("after its wait", operation) in violations([*rest, operation], slicing, 2)
        if operation.layer > 0 and isinstance(operation, PieceLaunch):
            assert violations([operation, *rest], slicing, 2) == [("before its producer", operation)]
    assert violations([Compute(4, 0), *operations], slicing, 2)[0].fault == "unknown"


def test_lifted_slices_are_sent_while_the_layer_before_is_computed():
    """As in section 4.4; the other slices one ahead of their use."""
    operations = schedule(DEFAULT, 2)
    second = [at for at in operations if at.layer == 2]
    sent = [at for at in second if isinstance(at, PieceLaunch)]
    assert [at.slice for at in sent] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    last = operations.index(Compute(1, 3))
    assert sum(operations.index(at) < last for at in sent) == DEFAULT.lifted_temporal * 3
    for number in range(DEFAULT.lifted_temporal, 4):
        sends = [operations.index(at) for at in sent if at.slice == number]
        assert operations.index(Compute(2, number - 1)) - 2 == max(sends)
        assert number == 1 or operations.index(Compute(2, number - 2)) < min(sends)


def test_dsp_blocks_before_each_layer():
    assert schedule(DSP, 1) == [
        PieceLaunch(0, 0, 0),
        Wait(0, 0),
        Compute(0, 0),
        PieceLaunch(1, 0, 0),
        Wait(1, 0),
        Compute(1, 0),
    ]


@pytest.mark.parametrize("wrong", [(0, 4, 0, 3), (4, 0, 1, 0), (4, 4, 5, 3), (4, 4, 1, -1)])
def test_numbers_that_make_no_schedule_are_refused(wrong):
    with pytest.raises(UsageError, match="ScaleFusion"):
        schedule(Slicing(*wrong), 1)
