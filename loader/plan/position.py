"""Position of a stream as a few readable numbers: no iterator, buffer or generator state."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, ValidationError

from reelweave.loader.blend.past import MAX_REVISIONS_CHARS
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.dataset.reader import NAME_CHARS
from reelweave.loader.errors import StateError, UsageError
from reelweave.loader.plan.policy import Policy, Regime, StepLayout
from reelweave.loader.plan.shuffle import SORTED, Shuffle

STATE_VERSION = 5  # version of states and of the plans whose steps they count

MAX_SETTINGS, MAX_PARTS = 12, 64
"""Maximum numbers of settings and segments of one epoch."""
MAX_BYTES = 4096
"""Maximum size of a state's JSON."""

MAX_SELECTION_CHARS = 300
"""Maximum length of a selection in words, in a state; what is behind it is cut off."""

MAX_ERAS = 64
"""Maximum number of eras of a state."""

_REVISIONS = r"[0-9]{1,9}(\.[0-9]{1,9})*"
_Revision = Annotated[
    str | None,
    Field(
        pattern=f"^[0-9a-f]{{{NAME_CHARS}}}(:{_REVISIONS})?$",
        max_length=NAME_CHARS + 1 + MAX_REVISIONS_CHARS,
        exclude_if=lambda revision: revision is None,
    ),
]
_Begun = Annotated[str, Field(pattern=r"^[0-9]{1,200}(/[1-9][0-9]{0,199})?(\+[1-9][0-9]{0,15})?$")]


class Setting(BaseModel, frozen=True, extra="forbid", strict=True):
    """Configuration that steps are made with, besides dataset, seed and buckets.

    ``cost`` is the recalibrated cost, if any, and ``stage`` the number of the curriculum stage whose buckets hold.
    ``revision`` is the beginning of the fingerprint of the planned dataset, if a later revision replaced it; for a
    blend with the revisions of its datasets, such as ``0123456789abcdef:0.3.1``.
    ``shuffle`` is the shuffle of samples. States omit the last two at their defaults.
    """

    policy: Policy
    regime: Regime
    lookahead: PositiveInt
    cost: Cost | None = None
    stage: NonNegativeInt = 0
    revision: _Revision = None
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
        setting, before = self.setting, other.setting
        alike = ("cost", "stage", "shuffle", "revision")
        same_order = all(getattr(setting, name) == getattr(before, name) for name in alike)
        return same_order and self.layout.same_steps(other.layout)


class Era(NamedTuple):
    """Epochs with equal draws.

    Attributes:
        stage: number of the curriculum stage whose weights hold.
        epoch: first epoch.
        revision: revision of the blend, as in `Setting`; None is the current one.
        parts: segments of the epoch before that were trained on earlier revisions, if this one entered within it.
        begun: passes over each leaf before this era, exact, and the passes skipped; empty: those of the eras before.
    """

    stage: int
    epoch: int
    revision: str | None = None
    parts: tuple[EpochSegment, ...] = ()
    begun: tuple[tuple[Fraction, int], ...] = ()


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
    def settings(self) -> list[Setting]:
        """Distinct settings of its segments, and of those that eras began behind."""
        parts = (*self.parts, *(part for era in self.eras for part in era.parts))
        return list(dict.fromkeys(part.setting for part in parts))

    @property
    def changed(self) -> bool:
        """True if its draws follow from earlier revisions of a blend."""
        return any(era.revision or era.parts or era.begun for era in self.eras)

    @property
    def fits_a_state(self) -> bool:
        """True if the epoch has few enough segments and settings for a state."""
        if len(self.parts) > MAX_PARTS or len(self.settings) > MAX_SETTINGS or len(self.eras) > MAX_ERAS:
            return False
        longest = replace(self.next_epoch(), step=2**62, epoch=2**62, parts=self.parts)
        if len(longest.eras) > MAX_ERAS:
            return False
        revisions = "0" + ".0" * (MAX_REVISIONS_CHARS // 2 - 1) if self.changed else None
        return len(json.dumps(state_of(longest, "0" * 64, "0" * 64, 2**64 - 1, revisions))) <= MAX_BYTES

    def planned_on(self, revision: str, drawn: bool) -> Self:
        """Return the same position with its segments planned on an earlier revision.

        Args:
            revision: name of the revision, as in `Setting`.
            drawn: True if the draws of an epoch follow from the earlier ones, as in a blend.
        """
        eras = tuple(era._replace(revision=era.revision or revision) for era in self.eras)
        return replace(self, parts=_planned_on(self.parts, revision), eras=eras if drawn else self.eras)

    def entering(self) -> Self:
        """Return the same position, with the epoch drawn from the current revision if it begins here."""
        last = self.eras[-1]
        if last.revision is None or not self.begins_epoch:
            return self
        if last.epoch == self.epoch and not last.parts and not last.begun:  # nothing was drawn in it
            return replace(self, eras=(*self.eras[:-1], last._replace(revision=None)))
        return replace(self, eras=(*self.eras, Era(last.stage, self.epoch)))

    def after_step(self, steps: int = 1) -> Self:
        """Return the position one step later, or several."""
        part = self.part._replace(steps=self.part.steps + steps)
        return replace(self, step=self.step + steps, parts=(*self.parts[:-1], part))

    def next_epoch(self) -> Self:
        """Return the beginning of the next epoch."""
        eras, revision = self.eras, self.part.setting.revision
        if eras[-1].revision is not None and eras[-1].revision != revision:
            changed = max(n for n, part in enumerate(self.parts) if part.setting.revision != revision)
            eras = (*eras, Era(eras[-1].stage, self.epoch + 1, revision, self.parts[: changed + 1]))
        return replace(self, epoch=self.epoch + 1, parts=(self.part._replace(steps=0),), eras=eras)

    def next_era(self, stage: int) -> Self:
        """Return the same position with the epoch drawn by another stage's weights."""
        eras = [era for era in self.eras if era.epoch < self.epoch or era.parts or era.begun]
        return replace(self, eras=(*eras, Era(stage, self.epoch)))

    def going_on(self, setting: Setting, ranks: int, microbatches: int) -> Self:
        """Return the same position with another setting; a segment ends where its steps hold other samples."""
        part = EpochSegment(setting, ranks, microbatches, 0)
        if part.continues(self.part):
            return replace(self, parts=(*self.parts[:-1], part._replace(steps=self.part.steps)))
        return replace(self, parts=(*self.parts[: None if self.part.steps else -1], part))


def _planned_on(parts: tuple[EpochSegment, ...], revision: str) -> tuple[EpochSegment, ...]:
    settings = (part.setting for part in parts)
    moved = (setting.model_copy(update={"revision": setting.revision or revision}) for setting in settings)
    return tuple(part._replace(setting=setting) for part, setting in zip(parts, moved, strict=True))


_Part = tuple[NonNegativeInt, PositiveInt, PositiveInt, NonNegativeInt]


class EnteredEra(BaseModel, frozen=True, extra="forbid", strict=True):
    """JSON form of an `Era` of a blend that changed: ``begun`` as 7/2, or 7/2+1 with passes skipped."""

    stage: NonNegativeInt
    epoch: NonNegativeInt
    revision: _Revision = None
    parts: list[_Part] = Field(default=[], max_length=MAX_PARTS, exclude_if=lambda parts: not parts)
    begun: list[_Begun] = Field(default=[], max_length=1000, exclude_if=lambda begun: not begun)


class StreamState(BaseModel, frozen=True, extra="forbid", strict=True):
    """JSON state of a stream: a position, and the identity of the plan whose steps it counts.

    ``parts`` holds the segments of the epoch: place in ``settings``, ranks, microbatches per rank, and finished steps.
    ``eras`` holds the stages whose weights held, and the first epoch of each; more where the datasets of a blend
    changed. ``revisions`` holds the revision of each of a blend's datasets, such as 0.3.1. ``selection`` says in words
    which samples are drawn, if not all are; ``dataset`` holds their checksum.
    """

    version: int
    dataset: str
    config: str
    seed: int
    revisions: str | None = Field(
        default=None,
        pattern=f"^{_REVISIONS}$",
        max_length=MAX_REVISIONS_CHARS,
        exclude_if=lambda revisions: revisions is None,
    )
    selection: str | None = Field(
        default=None, max_length=MAX_SELECTION_CHARS, exclude_if=lambda selection: selection is None
    )
    step: int = Field(ge=0, lt=2**63)
    epoch: int = Field(ge=0, lt=2**63)
    settings: list[Setting] = Field(min_length=1, max_length=MAX_SETTINGS)
    parts: list[_Part] = Field(min_length=1, max_length=MAX_PARTS)
    eras: list[tuple[NonNegativeInt, NonNegativeInt] | EnteredEra] = Field(min_length=1, max_length=MAX_ERAS)

    @property
    def position(self) -> Position:
        """Stream position in this state."""
        return Position(self.step, self.epoch, self._segments(self.parts), tuple(map(self._era, self.eras)))

    def _segments(self, parts: Sequence[_Part]) -> tuple[EpochSegment, ...]:
        return tuple(EpochSegment(self.settings[index], *rest) for index, *rest in parts)

    def _era(self, era: tuple[int, int] | EnteredEra) -> Era:
        if isinstance(era, tuple):
            return Era(*era)
        begun = (text.partition("+") for text in era.begun)
        passes = tuple((Fraction(passes), int(skipped or 0)) for passes, _, skipped in begun)
        return Era(era.stage, era.epoch, era.revision, self._segments(era.parts), passes)


def state_of(
    position: Position,
    dataset: str,
    config: str,
    seed: int,
    revisions: str | None = None,
    selection: str = "",
) -> dict[str, Any]:
    """Return the state as JSON values.

    Args:
        position: position between two steps.
        dataset: fingerprint of the dataset.
        config: fingerprint of the bucket configuration.
        seed: seed of the stream.
        revisions: revision of each dataset of a blend.
        selection: samples that are drawn, in words; "" for all.
    """
    settings = position.settings
    return StreamState(
        version=STATE_VERSION,
        dataset=dataset,
        config=config,
        seed=seed,
        revisions=revisions,
        selection=selection[:MAX_SELECTION_CHARS] or None,
        step=position.step,
        epoch=position.epoch,
        settings=settings,
        parts=_number_parts(position.parts, settings),
        eras=[
            EnteredEra(
                stage=era.stage,
                epoch=era.epoch,
                revision=era.revision,
                parts=_number_parts(era.parts, settings),
                begun=[f"{passes}+{skipped}" if skipped else str(passes) for passes, skipped in era.begun],
            )
            if era.revision or era.parts or era.begun
            else (era.stage, era.epoch)
            for era in position.eras
        ],
    ).model_dump(mode="json")


def _number_parts(parts: Sequence[EpochSegment], settings: Sequence[Setting]) -> list[_Part]:
    return [(settings.index(part.setting), *part[1:]) for part in parts]


def read_state(state: dict[str, Any]) -> StreamState:
    """Validate and parse a saved state.

    Raises:
        UsageError: the value is no state, or a state of another version.
    """
    if state.get("version", STATE_VERSION) != STATE_VERSION:
        raise StateError(
            f"cannot resume: the state has version {state['version']}, this code plans by version {STATE_VERSION}",
            "use the code that saved it",
        )
    try:
        # Validation of JSON accepts lists for tuples.
        loaded = StreamState.model_validate_json(json.dumps(state))
    except (ValidationError, TypeError, ValueError, RecursionError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        key = ".".join(map(str, problem["loc"])) or "all of it"
        raise UsageError(f"not a state of the loader: {key}: {problem['msg']}") from error
    entered = (part for era in loaded.eras if isinstance(era, EnteredEra) for part in era.parts)
    if any(index >= len(loaded.settings) for index, *_ in (*loaded.parts, *entered)):
        raise UsageError("not a state of the loader: parts: names a setting that is not there")
    return loaded
