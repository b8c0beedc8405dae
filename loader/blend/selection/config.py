"""Keys of a selection: a condition, a split by groups, a quota a group."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt

from reelweave.loader.blend.selection.condition import Condition, condition_of
from reelweave.loader.blend.selection.names import FieldName, field_name
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings

MAX_NAME_CHARS = 100

Part = Literal["train", "val"]
PARTS: tuple[Part, ...] = ("train", "val")


def _checked_condition(text: str) -> str:
    try:
        return condition_of(text, "where").text
    except UsageError as error:
        raise ValueError(str(error)) from error


def _checked_name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a name is not empty, and printable")
    return text


Where = Annotated[str, AfterValidator(_checked_condition)]
"""Text of a condition, checked."""

_Name = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(_checked_name)]


class GroupSplit(Settings):
    """Split of samples by groups: all samples of a group are in one part, chosen by the hash of the group's value."""

    by: _Name = Field(
        default="source", description="column, score or attribute whose value names the group of a sample"
    )
    share: float = Field(default=0.02, gt=0, lt=1, description="share of the groups that are in val")
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the hash; another one makes another split"
    )
    part: Part | None = Field(
        default=None,
        description="part that is drawn: train, or val; null: train, in a blend file the file's split",
    )


class Quota(Settings):
    """Most samples of a group, chosen by the hash of their keys."""

    by: _Name = Field(
        default="source", description="column, score or attribute whose value names the group of a sample"
    )
    samples: PositiveInt = Field(description="most samples of a group that are drawn")
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the hash; another one chooses others")


@dataclass(frozen=True)
class Selection:
    """Choice among the samples of a dataset: those that fulfil all conditions, in a part of a split, within a quota.

    Attributes:
        where: conditions, all of which hold.
        split: split by groups; None for none.
        quota: most samples a group, of those that the rest chooses; None for none.
    """

    where: tuple[Condition, ...] = ()
    split: GroupSplit | None = None
    quota: Quota | None = None

    @classmethod
    def of(cls, where: str | None, split: GroupSplit | None, quota: Quota | None, named: str) -> Self:
        """Return the selection of three keys.

        Args:
            where: text of a condition, or None.
            split: split by groups, or None.
            quota: quota, or None.
            named: name of the section of these keys, such as "stream", for messages.
        """
        conditions = () if where is None else (condition_of(where, f"{named}.where"),)
        return cls(conditions, split, quota)

    def __bool__(self) -> bool:
        return bool(self.where or self.split or self.quota)

    def within(self, inner: Self) -> Self:
        """Return the selection of what this one chooses among the samples of an inner one.

        Raises:
            UsageError: both have a split, or both a quota.
        """
        if (self.split and inner.split) or (self.quota and inner.quota):
            raise UsageError(
                "has a split or a quota beside another one that holds for the same samples; keep one"
            )
        return replace(
            inner,
            where=tuple(dict.fromkeys((*inner.where, *self.where))),
            split=inner.split or self.split,
            quota=inner.quota or self.quota,
        )

    @property
    def names(self) -> list[FieldName]:
        """Fields of the conditions, with the type that they are compared as."""
        return list(dict.fromkeys(name for condition in self.where for name in condition.names))

    @property
    def groupings(self) -> list[FieldName]:
        """Fields that name groups."""
        return [field_name(grouping.by) for grouping in (self.split, self.quota) if grouping]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the index that decide."""
        fields = [*self.names, *self.groupings]
        columns = dict.fromkeys(column for name in fields for column in name.columns)
        return (*columns, *(["key"] if self.quota and "key" not in columns else []))

    def to_json(self) -> list[Any]:
        """Return all that decides, as JSON values."""
        parts = [part and part.model_dump(mode="json") for part in (self.split, self.quota)]
        return [[condition.text for condition in self.where], *parts]

    @property
    def words(self) -> str:
        """The selection in words, such as "where a > 1; train side of source, 2% val"."""
        parts = [f"where {condition.text}" for condition in self.where]
        if split := self.split:
            seed = f", seed {split.seed}" if split.seed else ""
            parts.append(f"{split.part or 'train'} of a split by {split.by} ({split.share:.4g} in val{seed})")
        if quota := self.quota:
            seed = f", seed {quota.seed}" if quota.seed else ""
            parts.append(f"at most {quota.samples:,} samples for each {quota.by}{seed}")
        return "; ".join(parts)
