"""Comparison of two stream states, and the consequences for the steps that follow."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from reelweave.loader.plan.position import EpochSegment, Position, StreamState

Relation = Literal["same", "ahead", "behind", "changed_since", "changed_before", "forked", "incompatible"]
"""Relation of the first state to the second. same: equal steps follow. ahead, behind: one plan, different steps.
changed_since, changed_before: the first state is further (less far), and the setting of steps changed in between.
forked: one stream, but neither state leads to the other within the epoch. incompatible: different streams."""

_STREAMS = {
    "selection": "other samples are drawn: stream.where, split or quota",
    "dataset": "other samples, or a changed dataset",
    "config": "other buckets, budgets or frame sampling",
    "seed": "another order and other frames",
}

_ON_ONE_PLAN: tuple[Relation, ...] = ("same", "ahead", "behind")


class Difference(NamedTuple):
    """Field with different values.

    Attributes:
        field: path of the field in the state, such as ``parts.1.ranks`` of the second segment.
        first: value in the first state; None if missing.
        second: value in the second state; None if missing.
        meaning: explanation for users.
    """

    field: str
    first: Any
    second: Any
    meaning: str


@dataclass(frozen=True)
class StateDiff:
    """Comparison of two states.

    Attributes:
        relation: relation of the first state to the second.
        steps_ahead: steps by which the first state is ahead, negative if behind; within one epoch, steps of the epoch.
        epochs_ahead: epochs by which the first state is ahead.
        differences: fields with different values.
    """

    relation: Relation
    steps_ahead: int
    epochs_ahead: int
    differences: tuple[Difference, ...]

    @property
    def same_plan(self) -> bool:
        """True if runs from both states, with unchanged settings, train the same steps from the further one on."""
        return self.relation in _ON_ONE_PLAN

    @property
    def verdict(self) -> str:
        """Relation in a sentence for users."""
        steps, epochs = abs(self.steps_ahead), abs(self.epochs_ahead)
        by = f"{steps} step{'s' * (steps != 1)}"
        by += f", in a later epoch by {epochs}" if epochs else ""
        streams = [different.field for different in self.differences if different.field in _STREAMS]
        return {
            "same": "the same place of the same plan: runs from A and from B train the same following steps",
            "ahead": f"one plan: A is ahead by {by}; a run from B comes to the state of A",
            "behind": f"one plan: B is ahead by {by}; a run from A comes to the state of B",
            "changed_since": f"A is ahead by {by}, but changed how steps are made; a run from B trains other steps",
            "changed_before": f"B is ahead by {by}, but changed how steps are made; a run from A trains other steps",
            "forked": "one stream, but steps of this epoch are made in other ways: neither state leads to the other",
            "incompatible": f"not of one stream: {', '.join(streams)} differ; one cannot resume from the other's state",
        }[self.relation]


def diff_states(first: StreamState, second: StreamState) -> StateDiff:
    """Compare two states; a pure function that needs no dataset.

    Each run is assumed to continue with its last setting. Other ranks, microbatches or workers that run the same
    samples per step count as the same plan.

    Args:
        first: state checked by `reelweave.loader.plan.position.read_state`, so of this code's version.
        second: state checked likewise.
    """
    before, other = first.position, second.position
    return StateDiff(
        relation=_relation(first, second),
        # Earlier epochs may differ in their number of steps.
        steps_ahead=_num_done(before) - _num_done(other)
        if before.epoch == other.epoch
        else before.step - other.step,
        epochs_ahead=before.epoch - other.epoch,
        differences=tuple(_differences(first, second)),
    )


def _relation(first: StreamState, second: StreamState) -> Relation:
    if any(getattr(first, name) != getattr(second, name) for name in _STREAMS):
        return "incompatible"
    before, other = first.position, second.position
    on_from_one, on_from_other = _leads_to(before, other), _leads_to(other, before)
    if on_from_one and on_from_one == on_from_other:
        return "same" if on_from_one == "on" else "forked"
    if on_from_one:
        return "behind" if on_from_one == "on" else "changed_before"
    if on_from_other:
        return "ahead" if on_from_other == "on" else "changed_since"
    return "forked"


def _leads_to(start: Position, end: Position) -> Literal["on", "changed"] | None:
    """Return whether a run from `start` reaches `end` without ("on") or with a change ("changed"); None if never."""
    if start.epoch != end.epoch:
        if start.epoch > end.epoch:
            return None
        return "on" if len(end.parts) == 1 and end.part.continues(start.part) else "changed"
    closed = len(start.parts) - 1
    if closed >= len(end.parts) or not all(map(_same_part, start.parts[:closed], end.parts)):
        return None
    again = end.parts[closed]
    if again.continues(start.part):
        if again.steps < start.part.steps:
            return None
        return "on" if closed + 1 == len(end.parts) else "changed"
    return None if start.part.steps else "changed"


def _num_done(position: Position) -> int:
    """Return the finished steps of the epoch."""
    return sum(part.steps for part in position.parts)


def _same_part(segment: EpochSegment, other: EpochSegment) -> bool:
    return segment.continues(other) and segment.steps == other.steps


def _differences(first: StreamState, second: StreamState) -> Iterator[Difference]:
    for name, meaning in _STREAMS.items():
        if getattr(first, name) != getattr(second, name):
            yield Difference(name, getattr(first, name), getattr(second, name), meaning)
    before, other = first.position, second.position
    for name in ("step", "epoch"):
        if ahead := getattr(before, name) - getattr(other, name):
            meaning = f"{'A' if ahead > 0 else 'B'} counts {abs(ahead)} more"
            yield Difference(name, getattr(before, name), getattr(other, name), meaning)
    for index, (segment, other_segment) in enumerate(zip_longest(before.parts, other.parts)):
        yield from _part_differences(f"parts.{index}", segment, other_segment)


def _part_differences(
    field: str, segment: EpochSegment | None, other: EpochSegment | None
) -> Iterator[Difference]:
    if segment is None or other is None:
        first, second = (part and part_values(part) for part in (segment, other))
        yield Difference(field, first, second, f"a change that only {'A' if segment else 'B'} made")
        return
    samples = "the same samples in every step" if segment.continues(other) else "other samples in a step"
    steps = f"{abs(segment.steps - other.steps)} more in {'A' if segment.steps > other.steps else 'B'}"
    values = part_values(other)
    for name, value in part_values(segment).items():
        if value != values[name]:
            meaning = steps if name == "steps" else samples
            yield Difference(f"{field}.{name}", value, values[name], meaning)


def part_values(part: EpochSegment) -> dict[str, Any]:
    """Return a segment as plain values by configuration key; ``cost`` is None unless recalibrated."""
    return {
        "ranks": part.ranks,
        "microbatches": part.microbatches,
        **part.setting.model_dump(mode="json"),
        "revision": part.setting.revision,
        "shuffle": part.setting.shuffle.model_dump(mode="json"),
        "steps": part.steps,
    }
