"""What a row costs a warp: issued instructions by pipe, wavefronts of L1, and the length of its chain of dependences.

Each is the difference between a run of many rows and a run of few, so that nothing but the steady loop is counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.bench.sass.arithmetic import split
from tests.bench.sass.machine import Issued, Machine, Thread
from tests.bench.sass.text import Instruction

WARP = 32
LINE = 128
"""Bytes that one wavefront moves."""
_FMA = {"FADD", "FMUL", "FFMA", "IMAD", "HFMA2"}
_SPECIAL = {"MUFU", "F2F", "F2I", "I2F"}
_MEMORY = {
    "LDG",
    "STG",
    "LDS",
    "STS",
    "STAS",
    "SYNCS",
    "LDGSTS",
    "SHFL",
    "LDC",
    "BAR",
    "LDGDEPBAR",
    "DEPBAR",
    "S2R",
    "S2UR",
    "CS2R",
}
_CONTROL = {"BRA", "BSSY", "BSYNC", "EXIT", "CALL", "RET", "NOP", "WARPSYNC"}
LATENCY: Mapping[str, int] = {
    **dict.fromkeys(("LDS", "BAR", "S2R", "S2UR", "MUFU"), 30),
    **dict.fromkeys(("F2F", "I2F", "F2I"), 20),
    "SHFL": 24,
    "LDC": 40,
    "ULDC": 10,
    "R2UR": 12,
    "LDG": 1000,
    "SYNCS": 250,
}
"""Cycles until a result may be used; of all others `_SHORT`. LDG: of a row's statistics, from memory.

SYNCS: a wait for what other blocks of a cluster send. Another SM's shared memory is 180 cycles away (Luo et al. 2024,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture"); the rest, for counting and waking, is assumed.
"""
_SHARED_BY_ROWS = 40
"""Cycles of a load that hits L1: what many rows share."""
_SHORT = 5


@dataclass(frozen=True)
class RowCost:
    """Costs of one row for one warp.

    Attributes:
        issued: issue slots, those of instructions whose predicate is off included.
        pipes: issued instructions by pipe: fma, alu, special, memory, uniform, control.
        wavefronts: passes through L1 and shared memory; a shuffle is one.
        chain: cycles that the row takes a warp that is alone, if rows are there when they are waited for.
    """

    issued: float
    pipes: Mapping[str, float]
    wavefronts: float
    chain: float


def row_cost(
    code: Sequence[Instruction],
    threads: int,
    arguments: Callable[[int], bytes],
    few: int = 6,
    rows: int = 1,
    teams: int = 1,
) -> RowCost:
    """Return what a row costs a warp of a team of ``threads``, averaged over its warps.

    Args:
        code: the kernel.
        threads: threads of a team.
        arguments: the kernel's arguments for a number of rows per block.
        few: rows of the shorter run of a team; the longer one has three times as many. 0: a block has `rows` and ends.
        rows: rows of such a block.
        teams: teams of a block.
    """
    warps = threads // WARP
    costs: list[RowCost] = []
    for warp in sorted({0, warps - 1}):
        runs = [
            _run(code, Thread(warp * WARP, arguments(count * teams), threads, teams=teams))
            for count in ((few, 3 * few) if few else (1,))
        ]
        costs.append(_difference(*runs, rows=2 * few) if few else _difference(_NONE, *runs, rows=rows))
    weights = [1, warps - 1][: len(costs)]  # only the first warp stores a row's statistics

    def mean(values: Iterable[float]) -> float:
        return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)

    names = sorted({name for cost in costs for name in cost.pipes})
    return RowCost(
        mean(cost.issued for cost in costs),
        {name: mean(cost.pipes.get(name, 0) for cost in costs) for name in names},
        mean(cost.wavefronts for cost in costs),
        max(cost.chain for cost in costs),
    )


@dataclass(frozen=True)
class _Run:
    pipes: Counter[str]
    wavefronts: int
    cycles: int


_NONE = _Run(Counter(), 0, 0)


def _run(code: Sequence[Instruction], thread: Thread) -> _Run:
    first = list(Machine(code, thread).run())
    neighbour = Machine(code, replace(thread, index=thread.index + 1)).run()
    beside: dict[tuple[int, int], Issued] = {}
    turns: Counter[int] = Counter()
    for one in neighbour:
        turns[one.instruction.address] += 1
        beside[one.instruction.address, turns[one.instruction.address]] = one
    turns.clear()
    wavefronts = 0
    for one in first:
        turns[one.instruction.address] += 1
        if one.on:
            wavefronts += passes(one, beside.get((one.instruction.address, turns[one.instruction.address])))
    return _Run(Counter(pipe(one.instruction) for one in first), wavefronts, critical_path(first))


def _difference(few: _Run, many: _Run, rows: int) -> RowCost:
    pipes = {name: (many.pipes[name] - few.pipes[name]) / rows for name in sorted(many.pipes)}
    return RowCost(
        sum(pipes.values()),
        pipes,
        (many.wavefronts - few.wavefronts) / rows,
        (many.cycles - few.cycles) / rows,
    )


def pipe(one: Instruction) -> str:
    """Return the pipe of an instruction."""
    base = one.base
    for name, members in (("fma", _FMA), ("special", _SPECIAL), ("memory", _MEMORY), ("control", _CONTROL)):
        if base in members:
            return name
    return "uniform" if base == "R2UR" or (base.startswith("U") and base != "UNKNOWN") else "alu"


def passes(one: Issued, beside: Issued | None) -> int:
    """Return the wavefronts of an access, from the addresses of two neighbouring lanes.

    An access of one lane alone is one wavefront. An asynchronous copy passes twice: from L1 and into shared memory.
    """
    base, width = one.instruction.base, one.instruction.width
    if base in ("SHFL", "STAS"):
        return 1
    if base not in ("LDG", "STG", "LDS", "STS", "LDGSTS"):
        return 0
    if beside is None or not beside.on:
        return 1
    stride = width if one.at is None or beside.at is None else abs(beside.at - one.at)
    found = max(1, -(-WARP * stride // LINE), WARP * width // LINE if stride else 1)
    return found + (WARP * width // LINE if base == "LDGSTS" else 0)


def critical_path(trace: Sequence[Issued]) -> int:
    """Return the cycles that a lone warp takes: in order, one a cycle, each once what it reads is ready."""
    ready: dict[str, int] = {}
    now = 0
    for one in trace:
        instruction = one.instruction
        reads, writes = used(instruction)
        now = max([now + 1, *(ready.get(name, 0) for name in reads)])
        if not one.on:
            continue
        latency = LATENCY.get(instruction.base, _SHORT)
        if instruction.base == "LDG" and "CONSTANT" in instruction.modifiers:
            latency = _SHARED_BY_ROWS
        if instruction.base == "BAR" or "TRYWAIT" in instruction.modifiers:
            now += latency
        for name in writes:
            ready[name] = now + latency
    return now


def used(one: Instruction) -> tuple[list[str], list[str]]:
    """Return the registers and predicates that an instruction reads and writes."""
    reads = [one.guard.removeprefix("!")] if one.guard else []
    operands = one.operands
    writes: list[str] = []
    stores = not operands or one.base in {
        "STG",
        "STS",
        "STAS",
        "SYNCS",
        "LDGSTS",
        "BAR",
        "DEPBAR",
        "BRA",
        "EXIT",
        "CALL",
        "RET",
        "NOP",
    }
    if not stores and operands[0].kind in ("register", "predicate"):
        if (
            "SETP" in one.base
            or one.base.endswith("PLOP3")
            or all(one.kind == "predicate" for one in operands)
        ):
            written, targets, sources = operands[:2], [], operands[2:]
        else:
            named, target, values, conditions = split(one)
            written, targets, sources = tuple(named), [target], (*values, *conditions)
        writes = [operand.text for operand in written]
        for target in targets:
            if target and target.kind == "register":
                writes += _span(target.text, 2 if "WIDE" in one.modifiers else max(1, one.width // 4))
        operands = sources
    for operand in operands:
        if operand.kind == "register":
            wide = one.base in ("STG", "STS", "STAS") and one.width > 4
            reads += _span(operand.text, one.width // 4 if wide else 1)
        elif operand.kind == "predicate":
            reads.append(operand.text)
        for part in operand.parts:
            reads += _span(part.removesuffix(".64"), 2 if part.endswith(".64") else 1)
    return reads, writes


def _span(name: str, count: int) -> list[str]:
    letters = name.rstrip("0123456789")
    if letters == name:
        return []
    first = int(name[len(letters) :])
    return [f"{letters}{first + word}" for word in range(count)]
