"""Published recipe of a curation: its filters in their order, each with source, threshold and key of ours."""

import hashlib
import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from reelweave.loader.base.printable import printable
from reelweave.loader.settings import Settings

MOST_FILTERS, MOST_KEYS = 40, 4
_MOST_SOURCES, _MOST_CHARS = 20, 500


def _check_plain(text: str) -> str:
    """Refuse what a terminal might obey or hide."""
    if printable(text) != text:
        raise ValueError("text has no line breaks, control characters or invisible ones")
    return text


Text = Annotated[
    str, StringConstraints(min_length=1, max_length=_MOST_CHARS, strict=True), AfterValidator(_check_plain)
]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$", strict=True)]
KeyPath = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}(\.[a-z0-9_]{1,40}){1,5}$", strict=True)]
Value = bool | int | float | Text


class Need(Settings):
    """Model that a filter reads, which the user gives."""

    keys: tuple[KeyPath, ...] = Field(
        min_length=1,
        max_length=MOST_KEYS,
        description="keys that the user sets; unset, the filter is left out",
    )
    give: Text = Field(description="options of the command that give the model")


class PublishedFilter(Settings):
    """Filter of a published recipe, and what does the same here."""

    name: Text = Field(description="what is filtered, in a few words")
    published: Text = Field(description="published threshold, in words")
    source: Name = Field(description="source that says so: a name among `sources`")
    place: Text | None = Field(None, description="section, table or line of the source")
    published_yield: Text | None = Field(
        None, description="published yield, in words; unset: none is published"
    )
    kept_share: float | None = Field(
        None, ge=0, le=1, description="published share of clips that this filter keeps of those it is given"
    )
    keys: dict[KeyPath, Value] = Field(
        {}, max_length=MOST_KEYS, description="keys of ours that do it, with their values"
    )
    comparable: bool = Field(
        True, description="whether our value means the same as the published one; false needs a remark"
    )
    remark: Text | None = Field(
        None, description="how our method or unit differs, and how our value was chosen"
    )
    needs: Need | None = Field(None, description="model that the user gives")
    built_in: Text | None = Field(None, description="what does it here without a key")
    missing: Text | None = Field(None, description="why the filter does not run here")

    @model_validator(mode="after")
    def _check_choice(self) -> "PublishedFilter":
        if bool(self.keys) + (self.built_in is not None) + (self.missing is not None) != 1:
            raise ValueError(f"the filter {self.name!r} has one of `keys`, `built_in` and `missing`")
        if self.needs is not None and not self.keys:
            raise ValueError(f"the filter {self.name!r} has `needs` without `keys`")
        if not self.comparable and self.remark is None:
            raise ValueError(
                f"the filter {self.name!r} is not comparable: its remark says why and how ours was chosen"
            )
        if self.kept_share is not None and self.published_yield is None:
            raise ValueError(f"the filter {self.name!r} has `kept_share` without `published_yield`")
        return self


class Recipe(Settings):
    """Recipe of a curation, as it stands in its file."""

    name: Name = Field(description="name of the recipe")
    summary: Text = Field(description="what it is, in one line")
    sources: dict[Name, Text] = Field(
        min_length=1,
        max_length=_MOST_SOURCES,
        description="sources by name: repository, path and commit, or a paper and its version",
    )
    published_yield: Text | None = Field(
        None, description="published yield of all its filters, in words; unset: none is published"
    )
    kept_share: float | None = Field(
        None, ge=0, le=1, description="published share of clips that all its filters keep"
    )
    config: dict[str, Any] = Field(
        {}, description="further keys of ours, by section, that are no filter of it"
    )
    filters: tuple[PublishedFilter, ...] = Field(
        min_length=1, max_length=MOST_FILTERS, description="published filters, in the published order"
    )

    @model_validator(mode="after")
    def _check_sources(self) -> "Recipe":
        if self.kept_share is not None and self.published_yield is None:
            raise ValueError("a recipe has no `kept_share` without `published_yield`")
        for entry in self.filters:
            if entry.source not in self.sources:
                raise ValueError(
                    f"the filter {entry.name!r} names the source {entry.source!r}, which is not listed"
                )
        return self

    def record(self) -> dict[str, Any]:
        """Return what a dataset keeps of it: all of it as JSON values, and its digest."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return {"name": self.name, "digest": _digest(values), **values}


def recipe_of(record: Any) -> Recipe | None:
    """Return the recipe of a record that a dataset or a configuration keeps; None where it holds none.

    Raises:
        ValueError: The record is none of a recipe, or was changed since its digest was made.
    """
    if not record:
        return None
    if not isinstance(record, dict):
        raise ValueError("recipe is no mapping")
    recipe = Recipe.model_validate({name: value for name, value in record.items() if name != "digest"})
    if recipe.record() != record:
        raise ValueError(
            "recipe does not fit its digest: it was changed by hand. Save it as a file of its own, for --recipe FILE"
        )
    return recipe


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
