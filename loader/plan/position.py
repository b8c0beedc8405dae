"""Where a stream stands, as a few numbers that people can read: no iterator, no buffer, no generator state."""

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from loader.buckets.cost import Cost
from loader.dataset.reader import NAME_CHARS
from loader.errors import UsageError
from loader.plan.policy import Policy, Regime, StepLayout
from loader.plan.shuffle import SORTED, Shuffle

STATE_VERSION = 5  # of the state and of the plans it counts steps of

MAX_SETTINGS, MAX_PARTS = 12, 64
"""Of one epoch."""
MAX_BYTES = 4096
"""Of a state."""


class Setting(BaseModel, frozen=True, extra="forbid", strict=True):
    """How steps are made, beside the dataset, the seed and the buckets.

    ``cost`` is what recalibration replaced the bucket configuration's with, if anything; ``stage`` the place of the
    curriculum's stage whose buckets hold; ``revision`` the beginning of the fingerprint of the dataset that the steps
    were planned on, where it has a later revision since; ``shuffle`` how samples are shuffled. A state leaves out the
    last two where they say nothing.
    """

    policy: Policy
    regime: Regime
    lookahead: PositiveInt
    cost: Cost | None = None
    stage: NonNegativeInt = 0
    revision: str | None = Field(
        default=None, pattern=f"^[0-9a-f]{{{NAME_CHARS}}}$", exclude_if=lambda revision: revision is None
    )
    shuffle: Shuffle = Field(default=SORTED, exclude_if=lambda shuffle: shuffle == SORTED)


class EpochSegment(NamedTuple):
    """Steps of one epoch that were made in one way.

    Attributes:
        setting: how.
        ranks: data-parallel.
        microbatches: of a rank in a step, on average.
        steps: that are done.
    """

    setting: Setting
    ranks: int
    microbatches: int
    steps: int

    @property
    def layout(self) -> StepLayout:
        """Of each of the steps."""
        setting = self.setting
        return StepLayout(self.ranks, self.microbatches, setting.policy, setting.regime, setting.lookahead)

    def continues(self, other: "EpochSegment") -> bool:
        """Whether its steps hold the samples that those of the other part would have held."""
        own, before = self.setting, other.setting
        alike = ("cost", "stage", "shuffle", "revision")
        same_order = all(getattr(own, name) == getattr(before, name) for name in alike)
        return same_order and self.layout.same_steps(other.layout)


class Era(NamedTuple):
    """Epochs that are drawn alike: the place of the curriculum's stage whose weights hold, and the first of them."""

    stage: int
    epoch: int


@dataclass(frozen=True)
class Position:
    """Between two steps.

    Attributes:
        step: optimizer steps done since the start.
        epoch: from 0.
        parts: of the epoch; the last one goes on.
        eras: so far; the last one goes on.
    """

    step: int
    epoch: int
    parts: tuple[EpochSegment, ...]
    eras: tuple[Era, ...] = (Era(0, 0),)

    @property
    def part(self) -> EpochSegment:
        """The part that goes on."""
        return self.parts[-1]

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch is done."""
        return len(self.parts) == 1 and not self.part.steps

    @property
    def fits_a_state(self) -> bool:
        """Whether the epoch was not made in more ways than a state may hold."""
        if len(self.parts) > MAX_PARTS or len({part.setting for part in self.parts}) > MAX_SETTINGS:
            return False
        longest = state_of(replace(self, step=2**62, epoch=2**62), "0" * 64, "0" * 64, 2**64 - 1)
        return len(json.dumps(longest)) <= MAX_BYTES

    def planned_on(self, fingerprint: str) -> Self:
        """The same place, whose parts were planned on a dataset that has a later revision now."""
        name = fingerprint[:NAME_CHARS]
        settings = (part.setting for part in self.parts)
        moved = [one.model_copy(update={"revision": one.revision or name}) for one in settings]
        parts = (part._replace(setting=setting) for part, setting in zip(self.parts, moved, strict=True))
        return replace(self, parts=tuple(parts))

    def after_step(self) -> Self:
        """One step on."""
        part = self.part._replace(steps=self.part.steps + 1)
        return replace(self, step=self.step + 1, parts=(*self.parts[:-1], part))

    def next_epoch(self) -> Self:
        """The beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, parts=(self.part._replace(steps=0),))

    def next_era(self, stage: int) -> Self:
        """The same place, with the epoch drawn by the weights of another stage."""
        eras = [era for era in self.eras if era.epoch < self.epoch]
        return replace(self, eras=(*eras, Era(stage, self.epoch)))

    def going_on(self, setting: Setting, ranks: int, microbatches: int) -> Self:
        """The same place with steps made otherwise; the part before it is closed where they hold other samples."""
        part = EpochSegment(setting, ranks, microbatches, 0)
        if part.continues(self.part):
            return replace(self, parts=(*self.parts[:-1], part._replace(steps=self.part.steps)))
        return replace(self, parts=(*self.parts[: None if self.part.steps else -1], part))


class StreamState(BaseModel, frozen=True, extra="forbid", strict=True):
    """A position, and what the plan was made from that it counts steps of.

    ``parts`` are those of the epoch: place in ``settings``, ranks, microbatches of a rank, and steps done. ``eras`` are
    stages whose weights held, and the first epoch of each.
    """

    version: int
    dataset: str
    config: str
    seed: int
    step: int = Field(ge=0, lt=2**63)
    epoch: int = Field(ge=0, lt=2**63)
    settings: list[Setting] = Field(min_length=1, max_length=MAX_SETTINGS)
    parts: list[tuple[NonNegativeInt, PositiveInt, PositiveInt, NonNegativeInt]] = Field(
        min_length=1, max_length=MAX_PARTS
    )
    eras: list[tuple[NonNegativeInt, NonNegativeInt]] = Field(min_length=1, max_length=64)

    @property
    def position(self) -> Position:
        """The position it holds."""
        parts = (EpochSegment(self.settings[number], *rest) for number, *rest in self.parts)
        return Position(self.step, self.epoch, tuple(parts), tuple(Era(*era) for era in self.eras))


def state_of(position: Position, dataset: str, config: str, seed: int) -> dict[str, Any]:
    """The state as JSON values.

    Args:
        position: between two steps.
        dataset: fingerprint.
        config: fingerprint of the bucket configuration.
        seed: of the stream.
    """
    settings = list(dict.fromkeys(part.setting for part in position.parts))
    return StreamState(
        version=STATE_VERSION,
        dataset=dataset,
        config=config,
        seed=seed,
        step=position.step,
        epoch=position.epoch,
        settings=settings,
        parts=[(settings.index(part.setting), *part[1:]) for part in position.parts],
        eras=[(era.stage, era.epoch) for era in position.eras],
    ).model_dump(mode="json")


def read_state(state: dict[str, Any]) -> StreamState:
    """Checks what was saved.

    Raises:
        UsageError: it is no state, or one of another version.
    """
    if state.get("version", STATE_VERSION) != STATE_VERSION:
        raise UsageError(
            f"cannot resume: the state has version {state['version']}, this code plans by version {STATE_VERSION};"
            " use the code that saved it, or start without a state"
        )
    try:
        # Through JSON, where a list may stand for a tuple.
        loaded = StreamState.model_validate_json(json.dumps(state))
    except (ValidationError, TypeError, ValueError, RecursionError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = ".".join(map(str, problem["loc"])) or "all of it"
        raise UsageError(f"not a state of the loader: {key}: {problem['msg']}") from error
    if any(number >= len(loaded.settings) for number, *_ in loaded.parts):
        raise UsageError("not a state of the loader: parts: names a setting that is not there")
    return loaded
