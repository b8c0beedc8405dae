"""Names of what an index says of a sample: a column, a score or an attribute."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

Kind = Literal["number", "text", "boolean"]

_MAPS: dict[str, Kind] = {"scores": "number", "attributes": "text"}
COLUMNS: dict[str, Kind] = {
    **dict.fromkeys(
        ("frames", "fps", "height", "width", "duration_s", "text_tokens", "start_s", "end_s"), "number"
    ),
    **dict.fromkeys(
        (
            "key",
            "shard",
            "caption",
            "caption_source",
            "source",
            "audio",
            "split",
            "bin",
            "source_sha256",
            "sha256",
        ),
        "text",
    ),
}
"""Columns of the index that a name may be, with their types."""


@dataclass(frozen=True)
class FieldName:
    """Name of a column, a score or an attribute.

    Attributes:
        name: the name, without ``scores.`` or ``attributes.`` before it.
        home: "column", "scores", "attributes", or "" for a score or an attribute, as its use tells.
        kind: type of its values; None where only its use tells.
    """

    name: str
    home: str
    kind: Kind | None

    def read_as(self, kind: Kind | None) -> Self:
        """Return the name as a field of a type; one whose type is known stays as it is."""
        return self if self.kind is not None else replace(self, kind=kind)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the index that hold its values."""
        if self.home == "column":
            return (self.name,)
        if self.home:
            return (self.home,)
        homes = {"number": ("scores",), "text": ("attributes",), "boolean": ("attributes",)}
        return homes[self.kind] if self.kind else ("scores", "attributes")


def field_name(text: str) -> FieldName:
    """Return the field of a name: of a column, ``scores.NAME``, ``attributes.NAME``, or NAME of either of these."""
    outer, _, inner = text.partition(".")
    if inner and outer in _MAPS:
        return FieldName(inner, outer, _MAPS[outer])
    return FieldName(text, "column", COLUMNS[text]) if text in COLUMNS else FieldName(text, "", None)


def read_field(name: FieldName, table: pa.Table) -> Any:
    """Return the values of a field, null where a sample lacks it.

    Args:
        name: field; of two possible homes and no type, values say only whether a sample has it.
        table: part of an index with the field's columns.
    """
    if name.home == "column":
        values = table.column(name.name)
        return values.cast(pa.float64()) if name.kind == "number" else values
    looked_up = [pc.map_lookup(table.column(home), name.name, "first") for home in name.columns]
    if len(looked_up) == 2:
        is_there = pc.or_(*map(pc.is_valid, looked_up))
        return pc.if_else(is_there, True, pa.scalar(None, pa.bool_()))
    [values] = looked_up
    if name.kind != "boolean" or name.home:
        return values
    is_said = pc.is_in(values, value_set=pa.array(["true", "false"]))
    return pc.if_else(is_said, pc.equal(values, "true"), pa.scalar(None, pa.bool_()))


def unknown_name(name: FieldName, scores: Iterable[str], attributes: Iterable[str]) -> str:
    """Return why no sample has a field, with names that are like it, for a message."""
    scores, attributes = set(scores), set(attributes)
    if name.columns == ("scores",) and name.name in attributes:
        return f"{name.name} is text here (attributes.{name.name}): compare it with a text in quotes"
    if name.columns == ("attributes",) and name.name in scores:
        return f"{name.name} is a number here (scores.{name.name}): compare it with a number"
    known = sorted(scores | attributes | COLUMNS.keys())
    close = difflib.get_close_matches(name.name, known, n=3)
    nearest = f"did you mean {' or '.join(close)}? " if close else ""
    listed = [
        f"{home} {', '.join(sorted(names)[:20]) or 'none'}"
        for home, names in (("scores", scores), ("attributes", attributes))
    ]
    return f"no sample has {name.name}; {nearest}there are: {'; '.join(listed)}; columns {', '.join(COLUMNS)}"
