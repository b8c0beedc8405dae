"""Fields of a sample's JSON, and numbers such as .cls, as source, split, attributes and scores of its row."""

import difflib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.dataset.tables.checks import SPLITS
from reelweave.loader.dataset.tars.media import media_suffix
from reelweave.loader.errors import UsageError

MAX_FIELDS = 64
"""Most fields of a sample that are kept."""
MAX_NAME_CHARS = 64
MAX_TEXT_CHARS = 512
MAX_JSON_BYTES = 1 << 20

ALL, NONE = "all", "none"
JSON = "json."
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
"""Suffixes that webdataset decodes as whole numbers."""
CAPTIONS = ("caption", "text", "prompt")
"""Fields that are captions, and no metadata."""
MARK_NAMES = ("frame_rate", "scan", "alpha", "crop", "rest", "turn", "view", "caption")
"""Names of attributes that indexing itself gives; fields of these names are called json.NAME."""

_MAX_NUMBER_BYTES = 32
_LARGEST_EXACT = 2**53
_MAX_KNOWN_NAMES = 200
_COLUMNS = ("source", "split")

Members = Mapping[str, bytes | memoryview]


class Fields(NamedTuple):
    """Metadata of one sample, by where the index has it.

    Attributes:
        columns: Columns of the row that fields replace, of `source` and `split`.
        attributes: Texts by name.
        scores: Numbers by name.
    """

    columns: dict[str, str]
    attributes: dict[str, str]
    scores: dict[str, float]


@dataclass(frozen=True)
class FieldChoice:
    """Choice of the fields that an index keeps.

    Attributes:
        is_all: True if fields that are not chosen keep their names.
        chosen: Field by the name that it gets.
    """

    is_all: bool = True
    chosen: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the choice of ``all``, ``none``, or ``NAME=FIELD`` separated by commas, where ``all`` may stand, too.

        Raises:
            UsageError: the text is none of these.
        """
        items = [item.strip() for item in text.split(",") if item.strip()]
        if items == [NONE]:
            return cls(is_all=False)
        if not items or NONE in items:
            raise UsageError(
                f"--fields {text!r}: give {ALL}, {NONE}, or NAME=FIELD separated by commas, such as"
                " source=json.source,score=json.aesthetic"
            )
        chosen = dict(_parse_item(item) for item in items if item != ALL)
        if len(chosen) < len([item for item in items if item != ALL]):
            raise UsageError(f"--fields {text!r} gives one name to two fields")
        return cls(ALL in items, tuple(sorted(chosen.items())))

    def __str__(self) -> str:
        items = [f"{name}={source}" for name, source in self.chosen]
        return ",".join([ALL] * self.is_all + items) or NONE


@dataclass
class LeftOut:
    """Count of the fields of a tar's samples that the index does not have.

    Attributes:
        counts: Number of fields by reason, and the first of them.
        names: Names of fields of JSON, kept or not, at most some hundreds.
    """

    counts: dict[str, tuple[int, str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def add(self, reason: str, name: str, key: str) -> None:
        """Count a field of a sample."""
        count, first = self.counts.get(reason, (0, f"{_clean(name[:MAX_NAME_CHARS])} of {key}"))
        self.counts[reason] = count + 1, first

    @property
    def listed(self) -> tuple[tuple[str, int, str], ...]:
        """Reasons, each with the number of fields and the first of them."""
        return tuple((reason, count, first) for reason, (count, first) in sorted(self.counts.items()))

    def name(self, name: str) -> None:
        """Remember the name of a field."""
        if len(self.names) < _MAX_KNOWN_NAMES:
            self.names.add(_clean(name[:MAX_NAME_CHARS]))


def fields_of(key: str, members: Members, choice: FieldChoice, left_out: LeftOut) -> Fields:
    """Return the fields of a sample that an index keeps.

    Args:
        key: Key of the sample.
        members: Its contents by suffix.
        choice: Fields to keep.
        left_out: Count of what is left out.
    """
    fields = Fields({}, {}, {})
    if choice == FieldChoice(is_all=False):
        return fields
    values: dict[str, Any] = {}
    for source, value in _values(key, members, left_out):
        if source in values:  # {"a.b": 1, "a": {"b": 2}}
            left_out.add("the name of another field", source.removeprefix(JSON), key)
        values.setdefault(source, value)
    # Chosen fields by their new names, then, on request, the others by their own.
    for name, source in choice.chosen:
        if values.get(source) is not None and str(values[source]).strip():
            _keep(fields, name, values[source], key, left_out, is_column=name in _COLUMNS)
        elif name == "source":
            left_out.add("missing: tar and key stay the source", source, key)
    if choice.is_all:
        chosen = {source for _, source in choice.chosen}
        for source, value in values.items():
            name = source.removeprefix(JSON)
            if source in chosen or value is None or name in CAPTIONS or (name, value) == ("key", key):
                continue
            _keep(fields, f"{JSON}{name}" if name in MARK_NAMES else name, value, key, left_out)
    return fields


def close_names(name: str, names: set[str]) -> str:
    """Return known names of fields that are like one, for a message; the first ones where none is."""
    close = difflib.get_close_matches(name, sorted(names), n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"there are: {', '.join(sorted(filter(None, names))[:12])}" if any(names) else "no .json has any"


def _parse_item(item: str) -> tuple[str, str]:
    name, is_pair, source = (part.strip() for part in item.partition("="))
    if not is_pair or not name or not ((source.startswith(JSON) and source != JSON) or source in NUMBERS):
        raise UsageError(
            f"--fields: {item!r} is no NAME=FIELD, where FIELD is json.NAME, json.OUTER.NAME or one of"
            f" {', '.join(NUMBERS)}"
        )
    if name in MARK_NAMES or (name in INDEX.names and name not in _COLUMNS):
        raise UsageError(f"--fields: {name} is a name that the index uses itself; give the field another one")
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise UsageError(f"--fields: a name has at most {MAX_NAME_CHARS} characters, all of them printable")
    return name, source


def _values(key: str, members: Members, left_out: LeftOut) -> Iterator[tuple[str, Any]]:
    """Yield the values of a sample's JSON by their paths, and of members that are numbers."""
    for suffix in NUMBERS:
        if suffix in members:
            content = bytes(members[suffix][: _MAX_NUMBER_BYTES + 1])
            try:
                if len(content) > _MAX_NUMBER_BYTES or b"_" in content:  # which int() passes over
                    raise ValueError
                yield suffix, int(content)
            except ValueError:
                left_out.add("no whole number", f".{suffix}", key)
    for name, value in _json_object(key, members, left_out).items():
        if not isinstance(value, dict):
            left_out.name(name)
            yield f"{JSON}{name}", value
            continue
        for inner, value_inside in value.items():
            left_out.name(f"{name}.{inner}")
            yield f"{JSON}{name}.{inner}", value_inside


def _json_object(key: str, members: Members, left_out: LeftOut) -> dict[str, Any]:
    stem = (media_suffix(members) or "").rpartition(".")[0]
    suffixes = ("json", f"{stem}.json") if stem else ("json",)
    content = next((members[suffix] for suffix in suffixes if len(members.get(suffix, b""))), b"")
    if len(content) > MAX_JSON_BYTES:
        left_out.add(f"a file of more than {MAX_JSON_BYTES:,} bytes", ".json", key)
        return {}
    if not content:
        return {}
    try:
        data = bytes(content)
        value = json.loads(data.decode(json.detect_encoding(data), "replace"))
    except (ValueError, RecursionError):
        left_out.add("no JSON", ".json", key)
        return {}
    return value if isinstance(value, dict) else {}  # a list is one of captions


def _keep(
    fields: Fields, name: str, value: Any, key: str, left_out: LeftOut, is_column: bool = False
) -> None:
    """Put a value into the map of its type, or count it with the reason why not."""
    text = _text_of(value)
    if reason := _reason_against(fields, name, value, text):
        left_out.add(reason, name, key)
        return
    words = str(value) if text is None else text
    if is_column and name == "split":
        fields.attributes[name] = words
        if words not in SPLITS:
            left_out.add(
                "a split other than train and val: the sample stays in train", f"{words} as {name}", key
            )
            return
    if is_column:
        fields.columns[name] = words
    elif text is None:
        fields.scores[name] = float(value)
    else:
        fields.attributes[name] = text


def _text_of(value: Any) -> str | None:
    """Return the text that stands for a value; None for a number."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > _LARGEST_EXACT:
        return str(value) if value.bit_length() < 2048 else "9" * (MAX_TEXT_CHARS + 1)
    if isinstance(value, str):
        return _clean(value)
    return None


def _clean(text: str) -> str:
    """Return a text without what a table cannot hold: JSON may contain half a surrogate pair."""
    return text.replace("\0", " ").encode("utf-8", "replace").decode()


def _reason_against(fields: Fields, name: str, value: Any, text: str | None) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "more than one level deep"
    if len(name) > MAX_NAME_CHARS or not name.strip() or not name.isprintable():
        return f"a name that is empty, not printable or of more than {MAX_NAME_CHARS} characters"
    if text is not None and len(text) > MAX_TEXT_CHARS:
        return f"a text of more than {MAX_TEXT_CHARS} characters"
    if text is None and not math.isfinite(value):
        return "no finite number"
    if name in fields.attributes or name in fields.scores:
        return "the name of another field"
    if len(fields.attributes) + len(fields.scores) >= MAX_FIELDS:
        return f"behind the first {MAX_FIELDS} of the sample"
    return ""
