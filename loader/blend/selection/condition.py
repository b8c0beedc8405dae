"""Conditions on samples, such as ``aesthetic > 4.5 and licence == 'cc0'``: a part of Python's grammar, never run."""

import ast
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.blend.selection.names import FieldName, Kind, field_name, read_field
from reelweave.loader.errors import UsageError

MAX_CHARS = 1000
MAX_NODES = 200

WORDS = {"null": None, "none": None, "true": True, "false": False}
"""Names of values, in any case."""
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}
_GRAMMAR = "is not of this grammar: names, texts, numbers, comparisons, and, or, not, in, is null, + - * /"
_EXAMPLE = "such as aesthetic > 4.5 and licence in ('cc0', 'cc-by')"


@dataclass(frozen=True)
class Condition:
    """Condition on a sample; a missing value makes a comparison neither true nor false, as in SQL.

    Attributes:
        text: the condition, one line.
        named: name of the configuration key, for messages.
    """

    text: str
    named: str

    @property
    def tree(self) -> ast.expr:
        """Parsed and checked expression.

        Raises:
            UsageError: the text is no condition; names the position.
        """
        if len(self.text) > MAX_CHARS:
            raise UsageError(
                f"{self.named} has {len(self.text)} characters; a condition has at most {MAX_CHARS}"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python will refuse one day
                tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            where = f"{self.named}={self.text!r} at character {error.offset or len(self.text) + 1}"
            raise UsageError(f"{where}: {error.msg}; write a condition, {_EXAMPLE}") from None
        except (ValueError, RecursionError, MemoryError):
            raise UsageError(f"{self.named} is no condition; write one {_EXAMPLE}") from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise UsageError(f"{self.named} has more than {MAX_NODES} names, values and operators")
        _Checker(self).boolean(tree)
        return tree

    @property
    def names(self) -> list[FieldName]:
        """Fields that the condition names, with the type that it compares each as."""
        checker = _Checker(self)
        checker.boolean(self.tree)
        return list(dict.fromkeys(checker.names))

    def refuse(self, node: ast.AST, why: str) -> UsageError:
        """Return the error of a node: its position, in characters from 1, its text and the reason."""
        begin, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None)
        data = self.text.encode()
        shown, position = (
            data[begin:end].decode(errors="replace"),
            len(data[:begin].decode(errors="replace")) + 1,
        )
        return UsageError(f"{self.named}={self.text!r} at character {position}: {shown[:80]} {why}")

    def passes(self, table: pa.Table) -> pa.ChunkedArray:
        """Return for each row of an index whether it fulfils the condition; null where a missing value decides.

        Args:
            table: columns of the index that the names are in.
        """
        verdict = _evaluate(self.tree, "boolean", table)
        # Constants alone, as in 4 < 5, give one verdict for all rows.
        is_one = isinstance(verdict, pa.Scalar)
        return pa.chunked_array([pa.repeat(verdict, len(table))]) if is_one else verdict


def condition_of(text: str, named: str) -> Condition:
    """Return a condition, checked.

    Raises:
        UsageError: the text is none.
    """
    condition = Condition(" ".join(text.strip().splitlines()), named)
    _ = condition.tree
    return condition


class _Checker:
    """Check of a tree: nodes of the grammar alone, and operands of one type."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self.names: list[FieldName] = []

    def boolean(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self.boolean(value)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.boolean(node.operand)
        elif isinstance(node, ast.Compare):
            for left, operation, right in _pairs(node):
                self._comparison(left, operation, right)
        else:
            self._typed(node, "boolean")

    def _comparison(self, left: ast.expr, operation: ast.cmpop, right: ast.expr) -> None:
        if isinstance(operation, ast.Is | ast.IsNot):
            if not _is_null(right):
                raise self._condition.refuse(right, "stands behind `is`, which asks for null alone; write ==")
            self._typed(left, "any")
        elif isinstance(operation, ast.In | ast.NotIn):
            self._membership(left, right)
        else:
            if _is_null(left) or _is_null(right):
                raise self._condition.refuse(right, "is compared with null: write `is null` or `is not null`")
            for side in (left, right):
                if _kind(side) == "other":
                    raise self._condition.refuse(side, _GRAMMAR)
            kind = _common(_kind(left), _kind(right))
            if kind is None:
                raise self._condition.refuse(
                    right, f"is {_say(_kind(right))}, and what it is compared with {_say(_kind(left))}"
                )
            self._typed(left, kind)
            self._typed(right, kind)

    def _membership(self, left: ast.expr, right: ast.expr) -> None:
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            kinds = {
                _kind(element) for element in right.elts if isinstance(element, ast.Constant | ast.UnaryOp)
            }
            if len(kinds) != 1 or not kinds <= {"text", "number"} or not all(map(_is_value, right.elts)):
                raise self._condition.refuse(right, "is no list of texts, or of numbers")
            [of_list] = kinds
            kind = _common(_kind(left), of_list)
            if kind is None:
                raise self._condition.refuse(
                    left, f"is {_say(_kind(left))}, and the list has {_say(of_list)}"
                )
            self._typed(left, kind)
        elif isinstance(left, ast.Constant) and isinstance(left.value, str):
            self._typed(right, "text")
        else:
            raise self._condition.refuse(
                right, "is no list such as ('a', 'b'), nor is the left side a text to look for"
            )

    def _typed(self, node: ast.expr, wanted: Kind | Literal["any"]) -> None:
        """Check that a node is a value of a type, and note the field that it names."""
        if isinstance(node, ast.BoolOp | ast.Compare) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            if wanted not in ("boolean", "any"):
                raise self._condition.refuse(node, f"is true or false, where {_say(wanted)} is compared")
            self.boolean(node)
            return
        kind = _kind(node)
        if kind == "other":
            raise self._condition.refuse(node, _GRAMMAR)
        if kind not in ("free", wanted) and wanted != "any":
            raise self._condition.refuse(node, f"is {_say(kind)}, where {_say(wanted)} is needed")
        if isinstance(node, ast.BinOp):
            self._typed(node.left, "number")
            self._typed(node.right, "number")
        elif isinstance(node, ast.UnaryOp):
            self._typed(node.operand, "number")
        elif (name := _name_of(node)) is not None:
            self.names.append(name.read_as(None if wanted == "any" else wanted))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int | float)
            and not _is_finite(node.value)
        ):
            raise self._condition.refuse(node, "is no number that a score can be")


def _pairs(node: ast.Compare) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Yield the comparisons of a chain such as 1 < x < 3."""
    yield from zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)


def _name_of(node: ast.expr) -> FieldName | None:
    """Return the field that a node names: ``name``, ``outer.name``, ``scores.name``, ``attributes['any name']``."""
    if isinstance(node, ast.Name):
        return None if node.id.lower() in WORDS else field_name(node.id)
    if isinstance(node, ast.Attribute):
        path = _path(node)
        return None if path is None else field_name(path)
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and isinstance(node.slice, ast.Constant)
    ):
        inner, outer = node.slice.value, node.value.id
        if isinstance(inner, str) and outer in ("scores", "attributes"):
            return field_name(f"{outer}.{inner}")
    return None


def _path(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    outer = _path(node.value) if isinstance(node, ast.Attribute) else None
    return f"{outer}.{node.attr}" if isinstance(node, ast.Attribute) and outer is not None else None


def _kind(node: ast.expr) -> str:
    """Return the type of a node; "free" for a name that is a score or an attribute, as its use tells."""
    value = _constant(node)
    if value is not _NO_CONSTANT:
        if isinstance(value, bool):
            return "boolean"
        if isinstance(value, int | float):
            return "number"
        return "text" if isinstance(value, str) else "null" if value is None else "other"
    if (name := _name_of(node)) is not None:
        return name.kind or "free"
    if isinstance(node, ast.BoolOp | ast.Compare):
        return "boolean"
    if isinstance(node, ast.UnaryOp):
        return (
            "boolean"
            if isinstance(node.op, ast.Not)
            else "number"
            if isinstance(node.op, ast.USub)
            else "other"
        )
    return "number" if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS else "other"


_NO_CONSTANT = object()


def _constant(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id.lower() in WORDS:
        return WORDS[node.id.lower()]
    return _NO_CONSTANT


def _is_null(node: ast.expr) -> bool:
    return _constant(node) is None


def _is_value(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return isinstance(inner, ast.Constant)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _common(kind: str, other: str) -> Kind | None:
    """Return the type as which two operands are compared; None if they are of two types."""
    kinds: tuple[Kind, ...] = ("text", "number", "boolean")
    for known in kinds:
        if {kind, other} <= {known, "free"}:
            return "number" if kind == other == "free" else known
    return None


def _say(kind: str) -> str:
    words = {
        "text": "text",
        "number": "a number",
        "boolean": "true or false",
        "null": "null",
        "free": "a field",
    }
    return words.get(kind, "no value")


def _evaluate(node: ast.expr, wanted: Kind | None, table: pa.Table) -> Any:
    """Return the values of a checked node, as an array or a scalar."""
    if isinstance(node, ast.BoolOp):
        combine = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
        return reduce(combine, (_evaluate(value, "boolean", table) for value in node.values))
    if isinstance(node, ast.Compare):
        return reduce(pc.and_kleene, (_compare(*pair, table) for pair in _pairs(node)))
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return pc.invert(_evaluate(node.operand, "boolean", table))
        return pc.negate(_evaluate(node.operand, "number", table))
    if isinstance(node, ast.BinOp):
        sides = (_evaluate(side, "number", table) for side in (node.left, node.right))
        return _OPERATIONS[type(node.op)](*sides)
    if (name := _name_of(node)) is not None:
        return read_field(name.read_as(wanted), table)
    value = _constant(node)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return pa.scalar(float(value), pa.float64()) if is_number else pa.scalar(value)  # type: ignore[arg-type]


def _compare(left: ast.expr, operation: ast.cmpop, right: ast.expr, table: pa.Table) -> Any:
    if isinstance(operation, ast.Is | ast.IsNot):
        missing = pc.is_null(_evaluate(left, None, table))
        return missing if isinstance(operation, ast.Is) else pc.invert(missing)
    if isinstance(operation, ast.In | ast.NotIn):
        is_in = _is_in(left, right, table)
        return is_in if isinstance(operation, ast.In) else pc.invert(is_in)
    kind = _common(_kind(left), _kind(right))
    return _COMPARISONS[type(operation)](_evaluate(left, kind, table), _evaluate(right, kind, table))


def _is_in(left: ast.expr, right: ast.expr, table: pa.Table) -> Any:
    if not isinstance(right, ast.Tuple | ast.List | ast.Set):
        assert isinstance(left, ast.Constant)
        return pc.match_substring(_evaluate(right, "text", table), str(left.value))
    listed = [_evaluate(element, None, table).as_py() for element in right.elts]
    values = _evaluate(left, "text" if isinstance(listed[0], str) else "number", table)
    is_in = pc.is_in(values, value_set=pa.array(listed))
    return pc.if_else(pc.is_null(values), pa.scalar(None, pa.bool_()), is_in)
