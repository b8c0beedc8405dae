"""Verifier of schedules: coverage of all pieces, and order of launches, waits and computations."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from reelweave.train.sampling.scalefusion.schedule import Compute, Operation, PieceLaunch, Slicing, Wait

ScheduleFault = Literal[
    "missing", "twice", "unknown", "before its producer", "after its wait", "without a wait"
]


class Violation(NamedTuple):
    """Violation of a schedule's rules.

    Attributes:
        fault: "missing": an operation that never happens. "twice": it happens again. "unknown": the layers have
            no such slice. "before its producer": a launch before its part is computed. "after its wait": a launch
            that its slice does not wait for. "without a wait": a computation before the wait for its pieces.
        operation: the operation at fault.
    """

    fault: ScheduleFault
    operation: Operation


def violations(operations: Sequence[Operation], slicing: Slicing, pairs: int) -> list[Violation]:
    """Return all faults of a schedule; none if every slice is computed once, from all of its pieces.

    Operations run in program order on each of two streams, so an accepted schedule cannot hang. Each wait
    follows the launches that it waits for, and all ranks launch in the same order.

    Args:
        operations: the schedule.
        slicing: its numbers of slices.
        pairs: number of pairs of a spatial and a temporal layer.
    """
    expected = _wanted(slicing, pairs)
    done: set[Operation] = set()
    faults: list[Violation] = []
    for operation in operations:
        if operation not in expected:
            faults.append(Violation("unknown", operation))
            continue
        if operation in done:
            faults.append(Violation("twice", operation))
        if isinstance(operation, PieceLaunch):
            producer = Compute(operation.layer - 1, operation.part)
            if operation.layer > 0 and producer not in done:
                faults.append(Violation("before its producer", operation))
            if Wait(operation.layer, operation.slice) in done:
                faults.append(Violation("after its wait", operation))
        if isinstance(operation, Compute) and Wait(operation.layer, operation.slice) not in done:
            faults.append(Violation("without a wait", operation))
        done.add(operation)
    return faults + [Violation("missing", operation) for operation in expected if operation not in done]


def _wanted(slicing: Slicing, pairs: int) -> dict[Operation, None]:
    """Return every operation of a pass once, ordered by layer."""
    expected: dict[Operation, None] = {}
    for layer in range(2 * pairs):
        for index in range(slicing.count(layer)):
            for part in range(slicing.count(layer - 1)):
                expected[PieceLaunch(layer, index, part)] = None
            expected[Wait(layer, index)] = expected[Compute(layer, index)] = None
    return expected
