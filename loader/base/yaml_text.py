"""Bounded YAML reader for files of users, with the line of every key.

YAML can name types, expand through aliases and nest without limit. This reader accepts mappings, lists and plain
values; everything else is refused before it costs time or memory.
"""

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, NamedTuple

import yaml

from reelweave.loader.errors import UsageError

MAX_BYTES = 256 << 10
MAX_DEPTH = 64
MAX_NODES = 20_000
"""Maximum number of values and keys; nodes behind an alias count each time."""

_MAX_DIGITS = 100
_CORE = ("null", "bool", "int", "float", "str", "seq", "map")
_TAG = "tag:yaml.org,2002:"


class Document(NamedTuple):
    """Content of one YAML text.

    Attributes:
        values: plain values; None for an empty text.
        root: root node of the values.
    """

    values: Any
    root: yaml.Node | None

    def line(self, key: Sequence[int | str]) -> int | None:
        """Return the line, from 1, of a key, or of its innermost parent in the text."""
        node, deepest = self.root, None
        for part in key:
            inner = _inner(node, part)
            if inner is not None:
                mark, node = inner
                deepest = mark.line + 1
        return deepest


def read_yaml(data: bytes | str, where: str) -> Document:
    """Parse and check one YAML document.

    Args:
        data: whole text, UTF-8, with or without a byte order mark.
        where: file or option, for messages.

    Raises:
        UsageError: the text is no YAML, too large, or uses an unsupported feature; names the line and the key.
    """
    if len(data) > MAX_BYTES:
        raise UsageError(f"{where} is larger than {MAX_BYTES >> 10} KiB; that is no configuration")
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{where}, line {line} is no UTF-8; save the file as UTF-8") from error
    root = None
    try:
        reader = _Loader(text)
        root = reader.get_single_node()
        return Document(None if root is None else reader.construct_document(root), root)
    except yaml.constructor.ConstructorError as error:
        key = ".".join(_key_at(root, error.problem_mark) or ())
        location = f"{where}{_at(error)}{f', key {key}' if key else ''}"
        raise UsageError(f"{location}: {error.problem}") from error
    except yaml.MarkedYAMLError as error:
        raise UsageError(f"{where}{_at(error)} is no YAML: {error.problem or error.context}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UsageError(f"{where}, line {line} is no YAML: {error.reason}") from error
    except (
        ValueError,
        OverflowError,
    ) as error:  # raised by PyYAML's scanner for a character or version out of range
        problem = f"{where}, line {reader.line + 1} is no YAML: a number is out of range"
        raise UsageError(problem) from error


def _at(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f", line {mark.line + 1}" if mark else ""


def _key_at(node: yaml.Node | None, mark: yaml.Mark | None) -> tuple[str, ...] | None:
    """Return the path of keys to the value that begins at a mark."""
    if node is None or mark is None:
        return None
    if node.start_mark.index == mark.index:
        return ()
    inner: list[tuple[str, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        inner = [(_short(key), value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inner = [(str(index), value) for index, value in enumerate(node.value)]
    for name, value in inner:
        if (path := _key_at(value, mark)) is not None:
            return (name, *path)
    return None


def _inner(node: yaml.Node | None, part: int | str) -> tuple[yaml.Mark, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark, node.value[part]
    return None


class _Loader(yaml.SafeLoader):
    """Reader of the core types, with bounds."""

    yaml_constructors: ClassVar = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in _CORE
    }
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own, less two
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) in (*_CORE, "merge")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0
        self._sizes: dict[str | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._sizes:
                raise _wrong(event, f"the alias {event.anchor} stands within what it names")
            self._count(event, self._sizes.get(event.anchor, 0))
            return super().compose_node(parent, index)
        before = self._nodes
        self._count(event, 1)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _wrong(event, f"it is nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if event.anchor:
            self._sizes[event.anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode):
            self._check(node)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, ArithmeticError) as error:
            raise _wrong(node, f"{_short(node)} is no {node.tag.removeprefix(_TAG)}") from error
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(node, f"{_short(node)} is no finite number")
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise _wrong(node, f"{_short(node)} has more than 64 bits")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode):
                raise _wrong(key, "a key must be a word")
            if key.value in keys:
                raise _wrong(key, f"the key {_short(key)} is there twice")
            keys.add(key.value)
            if key.tag != f"{_TAG}merge":
                key.tag = f"{_TAG}str"  # `on` and `1` stay strings as keys
        return super().construct_mapping(node, deep)

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise _wrong(event, f"it holds more than {MAX_NODES} values, aliases counted")

    def _check(self, node: yaml.ScalarNode) -> None:
        if node.tag in (f"{_TAG}int", f"{_TAG}float") and len(node.value) > _MAX_DIGITS:
            raise _wrong(node, f"{_short(node)} has more than {_MAX_DIGITS} digits")
        if re.search("[\0\ud800-\udfff]", node.value):
            raise _wrong(node, "a value holds a null character or half of one")


def _wrong(node: yaml.Node | yaml.Event, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)  # type: ignore[arg-type]


def _short(node: yaml.Node) -> str:
    text = node.value if isinstance(node, yaml.ScalarNode) else "a list or mapping"
    return text if len(text) <= 40 else f"{text[:40]}..."
