"""Launch rules and argument blocks of the kernels, read from csrc/rules.h, csrc/args.h and sources of one operator."""

import ctypes
import re
from functools import cache
from typing import Any, NamedTuple

from reelweave.train.kernels.cuda.sources import CSRC

_CONSTANT = re.compile(r"^constexpr int k(\w+) = (\d+);", re.MULTILINE)
_CLASS = re.compile(r"^ +CLASS\((\d+), (\d+), (\d+), (\d+),", re.MULTILINE)
_FORWARD = re.compile(r"^ +FORWARD\((\d+), (\d+),", re.MULTILINE)
_GATED = re.compile(r"^ +GATED\((\d+), (\d+),", re.MULTILINE)
_CLUSTER = re.compile(r"^ +CLUSTER\((\d+), (\d+), (\d+),", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{(.*?)^\};", re.MULTILINE | re.DOTALL)
_DECLARATION = re.compile(r"(?:const )?(?P<type>\w+)(?P<pointer>\*?) (?P<names>[^;]+)")
_NAME = re.compile(r"(?P<pointer>\*?)(?P<name>\w+)(?:\[(?P<count>\d+)\])?")
_TYPES = {"int": ctypes.c_int, "float": ctypes.c_float, "i64": ctypes.c_longlong}


@cache
def constant(name: str) -> int:
    """Return a constant of rules.h, named without its k."""
    constants: dict[str, str] = dict(_CONSTANT.findall(_read("rules.h")))
    return int(constants[name])


@cache
def forward_classes(gated: bool) -> tuple[tuple[int, int], ...]:
    """Return vectors of a row that a thread holds and the largest block, of each class of D of the forward."""
    classes = (_GATED if gated else _FORWARD).findall(_read("rules.h"))
    return tuple((int(vectors), int(largest)) for vectors, largest in classes)


class BackwardClass(NamedTuple):
    """A class of D of the backward.

    Attributes:
        elements: elements that a thread holds.
        largest: threads of the largest team.
        cluster: blocks that share a row.
        block: threads of the largest block, of one team or more; 0: it has one team.
        token_block: the same for modulation by token.
    """

    elements: int
    largest: int
    cluster: int
    block: int = 0
    token_block: int = 0


@cache
def backward_classes() -> tuple[BackwardClass, ...]:
    """Return the classes of D of the backward, narrow ones first."""
    text = _read("rules.h")
    narrow = (map(int, groups) for groups in _CLASS.findall(text))
    wide = (map(int, groups) for groups in _CLUSTER.findall(text))
    return (
        *(BackwardClass(elements, largest, 1, *blocks) for elements, largest, *blocks in narrow),
        *(BackwardClass(*groups) for groups in wide),
    )


@cache
def struct(name: str, source: str = "args.h") -> type[ctypes.Structure]:
    """Return an argument block that a file of csrc/ declares as a structure of ctypes; args.h has its parts."""
    body = dict(_STRUCT.findall(_read(source)))[name]
    declarations = [match for part in body.split(";") if (match := _DECLARATION.fullmatch(part.strip()))]
    fields = [field for declaration in declarations for field in _fields(declaration)]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _fields(declaration: re.Match[str]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    for text in declaration["names"].split(","):
        name_match = _NAME.fullmatch(text.strip())
        assert name_match, f"args.h: {text}"
        kind: Any = ctypes.c_void_p
        if not (declaration["pointer"] or name_match["pointer"]):
            kind = _TYPES.get(declaration["type"]) or struct(declaration["type"])
        fields.append((name_match["name"], kind * int(name_match["count"]) if name_match["count"] else kind))
    return fields


def _read(source: str) -> str:
    """Return the text of a file of csrc/ without its comments."""
    return re.sub(r"//[^\n]*", "", (CSRC / source).read_text(encoding="utf-8"))
