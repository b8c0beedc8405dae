"""Position of a stream as a few readable numbers: no iterator, buffer or generator state."""

import json
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from loader.buckets.cost import Cost
from loader.dataset.reader import NAME_CHARS
from loader.errors import UsageError
from loader.plan.policy import Policy, Regime, StepLayout
from loader.plan.shuffle import SORTED, Shuffle

STATE_VERSION = 5  # version of states and of the plans whose steps they count

MAX_SETTINGS, MAX_PARTS = 12, 64
"""Maximum numbers of settings and segments of one epoch."""
MAX_BYTES = 4096
"""Maximum size of a state's JSON."""


class Setting(BaseModel, frozen=True, extra="forbid", strict=True):
    """Configuration that steps are made with, besides dataset, seed and buckets.

    ``cost`` is the recalibrated cost, if any, and ``stage`` the number of the curriculum stage whose buckets hold.
    ``revision`` is the beginning of the fingerprint of the planned dataset, if a later revision replaced it.
    ``shuffle`` is the shuffle of samples. States omit the last two at their defaults.
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
    """Steps of one epoch with one setting.

    Attributes:
        setting: configuration of the steps.
        ranks: number of data-parallel ranks.
        microbatches: mean microbatches per rank and step.
        steps: number of finished steps.
    """

    setting: Setting
    ranks: int
    microbatches: int
    steps: int

    @property
    def layout(self) -> StepLayout:
        """Layout of each of its steps."""
        setting = self.setting
        return StepLayout(self.ranks, self.microbatches, setting.policy, setting.regime, setting.lookahead)

    def continues(self, other: "EpochSegment") -> bool:
        """Return whether its steps hold the same samples as further steps of the other segment would."""
        own, before = self.setting, other.setting
        alike = ("cost", "stage", "shuffle", "revision")
        same_order = all(getattr(own, name) == getattr(before, name) for name in alike)
        return same_order and self.layout.same_steps(other.layout)


class Era(NamedTuple):
    """Epochs with equal draws: the number of the curriculum stage whose weights hold, and the first epoch."""

    stage: int
    epoch: int


@dataclass(frozen=True)
class Position:
    """Position between two optimizer steps.

    Attributes:
        step: optimizer steps since the start of the run.
        epoch: number of the epoch, from 0.
        parts: segments of the epoch; the last one continues.
        eras: eras so far; the last one continues.
    """

    step: int
    epoch: int
    parts: tuple[EpochSegment, ...]
    eras: tuple[Era, ...] = (Era(0, 0),)

    @property
    def part(self) -> EpochSegment:
        """Last segment, which continues."""
        return self.parts[-1]

    @property
    def begins_epoch(self) -> bool:
        """True if no step of the epoch is done."""
        return len(self.parts) == 1 and not self.part.steps

    @property
    def fits_a_state(self) -> bool:
        """True if the epoch has few enough segments and settings for a state."""
        if len(self.parts) > MAX_PARTS or len({part.setting for part in self.parts}) > MAX_SETTINGS:
            return False
        longest = state_of(replace(self, step=2**62, epoch=2**62), "0" * 64, "0" * 64, 2**64 - 1)
        return len(json.dumps(longest)) <= MAX_BYTES

    def planned_on(self, fingerprint: str) -> Self:
        """Return the same position with its segments planned on an earlier revision of the dataset."""
        name = fingerprint[:NAME_CHARS]
        settings = (part.setting for part in self.parts)
        moved = [one.model_copy(update={"revision": one.revision or name}) for one in settings]
        parts = (part._replace(setting=setting) for part, setting in zip(self.parts, moved, strict=True))
        return replace(self, parts=tuple(parts))

    def after_step(self, steps: int = 1) -> Self:
        """Return the position one step later, or several."""
        part = self.part._replace(steps=self.part.steps + steps)
        return replace(self, step=self.step + steps, parts=(*self.parts[:-1], part))

    def next_epoch(self) -> Self:
        """Return the beginning of the next epoch."""
        return replace(self, epoch=self.epoch + 1, parts=(self.part._replace(steps=0),))

    def next_era(self, stage: int) -> Self:
        """Return the same position with the epoch drawn by another stage's weights."""
        eras = [era for era in self.eras if era.epoch < self.epoch]
        return replace(self, eras=(*eras, Era(stage, self.epoch)))

    def going_on(self, setting: Setting, ranks: int, microbatches: int) -> Self:
        """Return the same position with another setting; a segment ends where its steps hold other samples."""
        part = EpochSegment(setting, ranks, microbatches, 0)
        if part.continues(self.part):
            return replace(self, parts=(*self.parts[:-1], part._replace(steps=self.part.steps)))
        return replace(self, parts=(*self.parts[: None if self.part.steps else -1], part))


class StreamState(BaseModel, frozen=True, extra="forbid", strict=True):
    """JSON state of a stream: a position, and the identity of the plan whose steps it counts.

    ``parts`` holds the segments of the epoch: place in ``settings``, ranks, microbatches per rank, and finished steps.
    ``eras`` holds the stages whose weights held, and the first epoch of each.
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
        """Stream position in this state."""
        parts = (EpochSegment(self.settings[number], *rest) for number, *rest in self.parts)
        return Position(self.step, self.epoch, tuple(parts), tuple(Era(*era) for era in self.eras))


def state_of(position: Position, dataset: str, config: str, seed: int) -> dict[str, Any]:
    """Return the state as JSON values.

    Args:
        position: position between two steps.
        dataset: fingerprint of the dataset.
        config: fingerprint of the bucket configuration.
        seed: seed of the stream.
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
    """Validate and parse a saved state.

    Raises:
        UsageError: the value is no state, or a state of another version.
    """
    if state.get("version", STATE_VERSION) != STATE_VERSION:
        raise UsageError(
            f"cannot resume: the state has version {state['version']}, this code plans by version {STATE_VERSION};"
            " use the code that saved it, or start without a state"
        )
    try:
        # Validation of JSON accepts lists for tuples.
        loaded = StreamState.model_validate_json(json.dumps(state))
    except (ValidationError, TypeError, ValueError, RecursionError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = ".".join(map(str, problem["loc"])) or "all of it"
        raise UsageError(f"not a state of the loader: {key}: {problem['msg']}") from error
    if any(number >= len(loaded.settings) for number, *_ in loaded.parts):
        raise UsageError("not a state of the loader: parts: names a setting that is not there")
    return loaded
