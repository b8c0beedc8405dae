"""Integer instructions of sm_90 as functions on a machine; a result of something unknown is unknown."""

import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.bench.sass.text import Instruction, Operand

if TYPE_CHECKING:
    from tests.bench.sass.machine import Machine

Value = int | None
MASK = 0xFFFFFFFF


def signed(value: int, bits: int = 32) -> int:
    """Read the lowest bits as two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def split(one: Instruction) -> tuple[list[Operand], Operand | None, list[Operand], list[Operand]]:
    """Return the predicates written, the register written, the sources, and the predicates read."""
    operands = list(one.operands)
    written = []
    while operands[0].kind == "predicate":
        written.append(operands.pop(0))
    target = operands.pop(0)
    while operands and operands[0].kind == "predicate" and len(operands) > 1:
        written.append(operands.pop(0))
    read = []
    while operands and operands[-1].kind == "predicate":
        read.insert(0, operands.pop())
    return written, target, operands, read


def store(
    machine: "Machine", one: Instruction, value: Value, carry: bool | None = None, words: int = 1
) -> None:
    written, target, _, _ = split(one)
    assert target
    machine.write(target.text, value, words)
    for predicate in written:
        if predicate.text not in ("PT", "UPT"):
            machine.predicates[predicate.text] = carry


def carried(machine: "Machine", one: Instruction) -> Value:
    """Return the carry that a .X instruction adds; the last predicates read are the carries."""
    if "X" not in one.modifiers:
        return 0
    total = 0
    for operand in split(one)[3]:
        found = machine.condition(operand)
        if found is None:
            return None
        total += found
    return total


def addend(machine: "Machine", operand: Operand) -> Value:
    """Read a summand such that the carry of a difference is right: -b is ~b and 1."""
    if operand.sign == "-" and operand.kind == "register":
        value = machine.raw(operand.text)
        return None if value is None else (~value & MASK) + 1
    return machine.read(operand)


def add(machine: "Machine", one: Instruction) -> None:
    terms = [addend(machine, operand) for operand in split(one)[2]]
    terms.append(carried(machine, one))
    total = known(terms)
    store(machine, one, total and total & MASK, None if total is None else total > MASK)


def known(terms: list[Value]) -> Value:
    return None if None in terms else sum(term for term in terms if term)


def multiply(machine: "Machine", one: Instruction) -> None:
    a, b, c = split(one)[2][:3]
    wide, high = "WIDE" in one.modifiers, "HI" in one.modifiers
    left, right = machine.read(a), machine.read(b)
    plus = machine.pair(c) if wide or high else machine.read(c)
    zero = left == 0 or right == 0
    if left is None or right is None:
        product = 0 if zero else None
    elif wide or high:
        unsigned = "U32" in one.modifiers
        product = left * right if unsigned else signed(left) * signed(right)
    else:
        product = left * right
    carry = carried(machine, one)
    if product is None or plus is None or carry is None:
        store(machine, one, None, None, 2 if wide else 1)
        return
    bits = 64 if wide or high else 32
    total = (product & (1 << bits) - 1) + plus + carry
    value = total & (1 << bits) - 1
    store(machine, one, value >> 32 if high else value, total >> bits > 0, 2 if wide else 1)


def scaled_add(machine: "Machine", one: Instruction) -> None:
    sources = split(one)[2]
    high, extended = "HI" in one.modifiers, "SX32" in one.modifiers
    a, b = machine.read(sources[0]), addend(machine, sources[1])
    shift = machine.read(sources[-1])
    upper: Value = 0
    if extended:
        upper = None if a is None else signed(a) >> 31 & MASK
    elif high:
        upper = machine.read(sources[2])
    carry = carried(machine, one)
    if a is None or b is None or upper is None or carry is None or shift is None:
        store(machine, one, None)
        return
    moved = (upper << 32 | a) << shift
    total = (moved >> 32 & MASK if high else moved & MASK) + b + carry
    store(machine, one, total & MASK, total > MASK)


def shift(machine: "Machine", one: Instruction) -> None:
    low, by, high = (machine.read(operand) for operand in split(one)[2])
    wide = any(name in one.modifiers for name in ("U64", "S64"))
    right, upper = "R" in one.modifiers, "HI" in one.modifiers
    if not wide and right and upper:
        low = 0
    if not wide and not right and not upper:
        high = 0
    if low is None or by is None or high is None:
        store(machine, one, None)
        return
    value = high << 32 | low
    if any(name in one.modifiers for name in ("S32", "S64")):
        value = signed(value, 64)
    value = value >> by if right else value << by
    store(machine, one, (value >> 32 if upper else value) & MASK)


def lookup(machine: "Machine", one: Instruction) -> None:
    """LOP3: a table of three bits, bit by bit; a predicate written says whether any bit is set."""
    sources = split(one)[2]
    table = next(operand.value for operand in reversed(sources) if operand.kind == "immediate")
    a, b, c = (machine.read(operand) for operand in sources[:3])
    result: Value = None
    if a is not None and b is not None and c is not None:
        result = 0
        for index in range(8):
            if table >> index & 1:
                result |= (
                    (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c) & MASK
                )
    store(machine, one, result, None if result is None else result != 0)


def predicate_lookup(machine: "Machine", one: Instruction) -> None:
    first, second, *sources = one.operands
    bits = [machine.condition(operand) for operand in sources[:3]]
    for target, table in zip((first, second), sources[3:], strict=False):
        if target.text in ("PT", "UPT"):
            continue
        outcomes = {
            bool(table.value >> index & 1)
            for index in range(8)
            if all(bit is None or bit == bool(index >> 2 - i & 1) for i, bit in enumerate(bits))
        }
        machine.predicates[target.text] = outcomes.pop() if len(outcomes) == 1 else None


COMPARE: dict[str, Callable[[int, int], bool]] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}


def compare(machine: "Machine", one: Instruction) -> None:
    """ISETP: .EX compares the upper words after the lower ones, whose outcome is its last operand."""
    first, second, left, right, *conditions = one.operands
    a, b = machine.read(left), machine.read(right)
    outcome: bool | None = None
    if a is not None and b is not None:
        if "U32" not in one.modifiers:
            a, b = signed(a), signed(b)
        outcome = COMPARE[one.modifiers[0]](a, b)
        if "EX" in one.modifiers:
            lower = machine.condition(conditions[-1])
            outcome = lower if a == b else outcome
    given = machine.condition(conditions[0])
    either = "OR" in one.modifiers
    for target, found in ((first, outcome), (second, None if outcome is None else not outcome)):
        if target.text not in ("PT", "UPT"):
            machine.predicates[target.text] = combined(found, given, either)


def combined(left: bool | None, right: bool | None, either: bool) -> bool | None:
    if either:
        return True if True in (left, right) else None if None in (left, right) else False
    return False if False in (left, right) else None if None in (left, right) else True


def select(machine: "Machine", one: Instruction) -> None:
    _, _, (a, b), (condition,) = split(one)
    found = machine.condition(condition)
    store(machine, one, None if found is None else machine.read(a if found else b))


def move(machine: "Machine", one: Instruction) -> None:
    source = one.operands[1]
    wide = one.base == "CS2R" and "32" not in one.modifiers
    value = 0 if source.text == "SRZ" else machine.read(source)
    store(machine, one, value, words=2 if wide else 1)


def permute(machine: "Machine", one: Instruction) -> None:
    low, selector, high = (machine.read(operand) for operand in split(one)[2])
    if low is None or selector is None or high is None or selector & 0x8888:
        store(machine, one, None)
        return
    both = high << 32 | low
    store(machine, one, sum((both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i for i in range(4)))


def absolute(machine: "Machine", one: Instruction) -> None:
    value = machine.read(one.operands[1])
    store(machine, one, None if value is None else abs(signed(value)) & MASK)


def smaller_or_larger(machine: "Machine", one: Instruction) -> None:
    """VIMNMX, and VIADDMNMX, which adds before; RELU makes what is negative zero."""
    *summands, other = split(one)[2]
    a, b = known([machine.read(operand) for operand in summands]), machine.read(other)
    least = machine.condition(split(one)[3][0])
    if a is None or b is None or least is None:
        store(machine, one, None)
        return
    a, b = (value & MASK if "U32" in one.modifiers else signed(value) for value in (a, b))
    found = min(a, b) if least else max(a, b)
    store(machine, one, max(found, 0) & MASK if "RELU" in one.modifiers else found & MASK)


def constant_halves(machine: "Machine", one: Instruction) -> None:
    """HFMA2 of zeros loads two halves as a constant; any other is arithmetic."""
    target, a, b, *numbers = one.operands
    if a.text != "RZ" or b.text != "RZ" or any(number.kind != "other" for number in numbers):
        machine.write(target.text, None)
        return
    high, low = (struct.unpack("<H", struct.pack("<e", float(number.text)))[0] for number in numbers)
    machine.write(target.text, high << 16 | low)


def to_float(machine: "Machine", one: Instruction) -> None:
    value = machine.read(one.operands[1])
    if value is None or "U64" in one.modifiers:
        store(machine, one, None)
        return
    value = signed(value) if "S32" in one.modifiers or one.modifiers == ("RP",) else value
    nearest = as_float(bits(float(value)))
    if "RP" in one.modifiers and nearest < value:
        nearest = as_float(bits(nearest) + 1)
    store(machine, one, bits(nearest))


def to_integer(machine: "Machine", one: Instruction) -> None:
    value = machine.read(one.operands[1])
    found = None if value is None or "U64" in one.modifiers else as_float(value)
    store(machine, one, None if found is None or not math.isfinite(found) else min(max(int(found), 0), MASK))


def special_function(machine: "Machine", one: Instruction) -> None:
    """MUFU: only the reciprocal, which integer division uses."""
    value = machine.read(one.operands[1])
    found = None if value is None or "RCP" not in one.modifiers else as_float(value)
    store(machine, one, bits(1 / found) if found and math.isfinite(found) else None)


def ordinary(machine: "Machine", one: Instruction) -> None:
    """FCHK: the quotient of ordinary numbers needs no second, slow division."""
    machine.predicates[one.operands[0].text] = False


def agreed(machine: "Machine", one: Instruction) -> None:
    """VOTE of threads that agree."""
    target, source = one.operands[0], one.operands[-1]
    machine.predicates[target.text] = machine.condition(source)


def bits(value: float) -> int:
    """Return the bits of the nearest float32."""
    found: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return found


def as_float(value: int) -> float:
    """Read bits as a float32."""
    found: float = struct.unpack("<f", struct.pack("<I", value & MASK))[0]
    return found


def predicates_to_register(machine: "Machine", one: Instruction) -> None:
    """P2R: predicates of a mask as bits of a register, the other bits from another one."""
    target, _, others, mask = one.operands
    value = machine.read(others)
    chosen = [bit for bit in range(7) if mask.value >> bit & 1]
    set_bits = [machine.predicate(f"P{bit}") for bit in chosen]
    if value is not None:
        value &= ~mask.value
        value |= sum(bool(on) << bit for bit, on in zip(chosen, set_bits, strict=True))
    machine.write(target.text, None if None in set_bits else value)


UNDERSTOOD = frozenset(COMPARE) | {
    *(
        "U32",
        "S32",
        "U64",
        "S64",
        "32",
        "64",
        "F32",
        "WIDE",
        "HI",
        "X",
        "SX32",
        "L",
        "R",
        "EX",
        "AND",
        "OR",
        "RELU",
    ),
    *("MOV", "IADD", "SHL", "U", "LUT", "RP", "FTZ", "TRUNC", "NTZ", "MMA", "RCP", "ALL", "ANY"),
}
"""Modifiers that the functions know; what has another is not calculated."""
CALCULATED: dict[str, Callable[[Any, Instruction], None]] = {
    "IADD3": add,
    "UIADD3": add,
    "VIADD": add,
    "IADD": add,
    "IMAD": multiply,
    "UIMAD": multiply,
    "LEA": scaled_add,
    "ULEA": scaled_add,
    "SHF": shift,
    "USHF": shift,
    "LOP3": lookup,
    "ULOP3": lookup,
    "P2R": predicates_to_register,
    "PLOP3": predicate_lookup,
    "UPLOP3": predicate_lookup,
    "ISETP": compare,
    "UISETP": compare,
    "SEL": select,
    "USEL": select,
    "MOV": move,
    "UMOV": move,
    "R2UR": move,
    "CS2R": move,
    "PRMT": permute,
    "UPRMT": permute,
    "IABS": absolute,
    "IMNMX": smaller_or_larger,
    "VIMNMX": smaller_or_larger,
    "UIMNMX": smaller_or_larger,
    "VIADDMNMX": smaller_or_larger,
    "HFMA2": constant_halves,
    "I2F": to_float,
    "I2FP": to_float,
    "F2I": to_integer,
    "MUFU": special_function,
    "VOTEU": agreed,
    "FCHK": ordinary,
}
