"""Disassembly of cuobjdump as instructions with parsed operands."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["register", "predicate", "immediate", "constant", "address", "other"]
STEP = 16
"""Bytes of an instruction."""

_FUNCTION = re.compile(r"^\s*Function : (\w+)")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_INSTRUCTION = re.compile(r"(?:@(!?U?P[T\d])\s+)?([A-Z][A-Z0-9_.]*)\s*(.*)", re.DOTALL)
_REGISTER = re.compile(r"([-~]?)\|?(U?R)(Z|\d+)\|?((?:\.\w+)*)")
_PREDICATE = re.compile(r"(!?)(U?P)(T|\d+)")
_CONSTANT = re.compile(r"([-~]?)c\[0x0\]\[(?:(U?R(?:Z|\d+))\+?)?(0x[0-9a-f]+)?\](?:\.\w+)*")
_IMMEDIATE = re.compile(r"-?0x[0-9a-f]+")
_NUMBER = re.compile(r"[-+]?(\d+(\.\d+)?(e[-+]?\d+)?|INF|QNAN)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:desc\[UR\d+\])?\[(.*)\]")


@dataclass(frozen=True)
class Operand:
    """One operand.

    Attributes:
        kind: what it is.
        text: its name: "R4" or "P0" (RZ and PT included), or its text.
        sign: "-", "~", "!" or nothing.
        value: an immediate, or the offset of a constant or address.
        parts: registers that an address or the index of a constant adds up.
    """

    kind: Kind
    text: str
    sign: str = ""
    value: int = 0
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instruction:
    """One instruction; `guard` is its predicate without the @, or nothing."""

    address: int
    guard: str
    opcode: str
    operands: tuple[Operand, ...]

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def modifiers(self) -> tuple[str, ...]:
        return tuple(self.opcode.split(".")[1:])

    @property
    def width(self) -> int:
        """Bytes that a lane moves, or that its result has."""
        return next((int(one) // 8 for one in self.modifiers if one in ("64", "128")), 4)

    @property
    def target(self) -> int:
        """The address that a branch or a call names."""
        return next(one.value for one in reversed(self.operands) if one.kind == "immediate")


def functions(
    disassembly: str, wanted: Callable[[str], bool] | None = None
) -> Mapping[str, Sequence[Instruction]]:
    """Return the instructions of each wanted function of `cuobjdump -sass`."""
    found: dict[str, list[Instruction]] = {}
    current: list[Instruction] = []
    taken = True
    for line in disassembly.splitlines():
        if "Function :" in line and (function := _FUNCTION.match(line)):
            taken = wanted is None or wanted(function[1])
            current = found.setdefault(function[1], []) if taken else []
        elif taken and (code := _LINE.match(line)):
            current.append(instruction(int(code[1], 16), code[2]))
    return found


def instruction(address: int, text: str) -> Instruction:
    """Parse one line, such as ``@!P0 IADD3 R2, P1, R4, -R6, RZ``."""
    found = _INSTRUCTION.fullmatch(text)
    assert found, text
    guard, opcode, rest = found.groups()
    parts = re.split(
        r",\s*|(?<=\d) (?=0x)", rest.strip()
    )  # RET has no comma between its register and its offset
    operands = tuple(map(operand, parts)) if rest.strip() else ()
    return Instruction(address, guard or "", opcode, operands)


def operand(text: str) -> Operand:
    """Parse one operand."""
    text = text.strip()
    if found := _REGISTER.fullmatch(text):
        return Operand("register", found[2] + found[3], found[1])
    if found := _PREDICATE.fullmatch(text):
        return Operand("predicate", found[2] + found[3], found[1])
    if _IMMEDIATE.fullmatch(text):
        return Operand("immediate", text, value=int(text, 16))
    if found := _CONSTANT.fullmatch(text):
        parts = (found[2],) if found[2] else ()
        return Operand("constant", text, found[1], int(found[3] or "0", 16), parts)
    if found := _ADDRESS.fullmatch(text):
        return _address(found[1], text)
    if _NUMBER.fullmatch(text):
        return Operand("other", text)
    return Operand("other", text)


def _address(inside: str, text: str) -> Operand:
    parts, offset = [], 0
    for part in inside.replace("-0x", "+-0x").split("+"):
        name = (
            part.removesuffix(".64")
            .removesuffix(".U32")
            .removesuffix(".X16")
            .removesuffix(".X8")
            .removesuffix(".X4")
        )
        if _IMMEDIATE.fullmatch(name):
            offset += int(name, 16)
        elif name:
            parts.append(name + (".64" if part.endswith(".64") else ""))
    return Operand("address", text, value=offset, parts=tuple(parts))
