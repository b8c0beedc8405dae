"""Execution of the integer path of one thread of a kernel, to see which instructions it issues.

Integer registers, predicates and addresses are computed; what memory and floating point give is unknown. A branch on
something unknown is an error, so a count is never guessed. Shuffles, barriers and stores have no effect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from reelweave.loader.errors import RunError
from tests.bench.sass.arithmetic import CALCULATED, UNDERSTOOD, Value
from tests.bench.sass.text import STEP, Instruction, Operand

MASK = 0xFFFFFFFF
PARAMETERS = 0x210
"""Where a kernel's arguments begin in the constant bank of sm_90."""
_SILENT = {
    *("STG", "STS", "BAR", "DEPBAR", "LDGDEPBAR", "BSSY", "BSYNC", "NOP", "LDGSTS", "WARPSYNC", "ERRBAR"),
    *("STAS", "UCGABAR_ARV", "UCGABAR_WAIT", "MEMBAR", "CGAERRBAR", "CCTL"),
}


@dataclass(frozen=True)
class Thread:
    """Place of a thread of a first team: its index, its block, the team's threads, and the kernel's arguments."""

    index: int
    arguments: bytes
    threads: int
    block: int = 0
    teams: int = 1


@dataclass(frozen=True)
class Issued:
    """One issued instruction; `on` is False where its predicate is off; `at` its byte address, if that is known."""

    instruction: Instruction
    on: bool
    at: int | None


@dataclass
class Machine:
    """Registers and predicates of one thread of ``code``."""

    code: Sequence[Instruction]
    thread: Thread
    registers: dict[str, Value] = field(default_factory=dict)
    predicates: dict[str, bool | None] = field(default_factory=dict)

    def run(self, limit: int = 2_000_000) -> Iterator[Issued]:
        """Yield what is issued until the thread exits.

        Raises:
            RunError: control flow depends on something unknown, or the thread does not end.
        """
        at = {one.address: one for one in self.code}
        counter = self.code[0].address
        for _ in range(limit):
            one = at[counter]
            counter += STEP
            on = self._guard(one)
            yield Issued(one, on is not False, self._address(one) if on else None)
            if on is None:
                self._forget(one)
            if not on:
                continue
            if one.base == "EXIT":
                return
            if one.base in ("BRA", "CALL"):
                if self._taken(one):
                    counter = one.target
            elif one.base == "RET":
                counter = self._known(one, self.read(one.operands[0]))
            else:
                self._execute(one)
        raise RunError(f"the thread has not ended after {limit:,} instructions")

    def _guard(self, one: Instruction) -> bool | None:
        if not one.guard:
            return True
        found = self.predicate(one.guard.removeprefix("!"))
        if found is None:
            if one.base in ("BRA", "EXIT", "CALL", "RET"):
                raise RunError(f"{one.opcode} at {one.address:#x} depends on {one.guard}, which is unknown")
            return None
        return found != one.guard.startswith("!")

    def _taken(self, one: Instruction) -> bool:
        conditions = [operand for operand in one.operands if operand.kind == "predicate"]
        found = [self.condition(operand) for operand in conditions]
        if None in found:
            raise RunError(f"{one.opcode} at {one.address:#x} depends on something unknown")
        return all(found)

    def _known(self, one: Instruction, value: Value) -> int:
        if value is None:
            raise RunError(f"{one.opcode} at {one.address:#x} needs a register that is unknown")
        return value

    def predicate(self, name: str) -> bool | None:
        return True if name in ("PT", "UPT") else self.predicates.get(name)

    def condition(self, operand: Operand) -> bool | None:
        found = self.predicate(operand.text)
        return None if found is None else found != (operand.sign == "!")

    def raw(self, name: str) -> Value:
        # Compilers keep predicates as bits of a register, others of which nobody ever wrote.
        return 0 if name in ("RZ", "URZ") else self.registers.get(name, 0)

    def pair(self, operand: Operand) -> Value:
        """Read 64 bits: a pair of registers, or an immediate."""
        if operand.kind != "register":
            return self.read(operand)
        low, high = self.raw(operand.text), self.raw(_next(operand.text, 1))
        return None if low is None or high is None else high << 32 | low

    def read(self, operand: Operand) -> Value:
        """Read 32 bits, with the sign that stands before them."""
        if operand.kind == "immediate":
            return operand.value & MASK
        value = self._constant(operand) if operand.kind == "constant" else None
        if operand.kind == "register":
            value = self.raw(operand.text)
        if value is None:
            return None
        return {"-": -value, "~": ~value, "": value}[operand.sign] & MASK

    def _constant(self, operand: Operand, at: int = 0) -> Value:
        index = sum(self.raw(part) or 0 for part in operand.parts)
        if any(self.raw(part) is None for part in operand.parts):
            return None
        place = operand.value + index + at
        if place == 0:
            return self.thread.threads
        if place < PARAMETERS:
            return {4: self.thread.teams, 8: 1}.get(place, 0)
        start = place - PARAMETERS
        return int.from_bytes(self.thread.arguments[start : start + 4].ljust(4, b"\0"), "little")

    def write(self, name: str, value: Value, words: int = 1) -> None:
        for word in range(words):
            if name not in ("RZ", "URZ"):
                self.registers[_next(name, word)] = None if value is None else value >> 32 * word & MASK

    def _address(self, one: Instruction) -> int | None:
        place = next((operand for operand in reversed(one.operands) if operand.kind == "address"), None)
        if place is None:
            return None
        total = place.value
        for part in place.parts:
            name = part.removesuffix(".64")
            value = self.pair(Operand("register", name)) if name != part else self.raw(name)
            if value is None:
                return None
            total += value
        return total

    def _execute(self, one: Instruction) -> None:
        base = one.base
        calculate = CALCULATED.get(base) if UNDERSTOOD.issuperset(one.modifiers) else None
        if base in _SILENT:
            return
        if base == "SYNCS":
            # What other blocks of a cluster send is there when it is waited for.
            if "TRYWAIT" in one.modifiers:
                self.predicates[one.operands[0].text] = True
            return
        if base in ("LDC", "ULDC"):
            words = [self._constant(one.operands[-1], at) for at in range(0, one.width, 4)]
            known = None if None in words else sum(word << 32 * i for i, word in enumerate(words) if word)
            self.write(one.operands[0].text, known, len(words))
        elif base == "SHFL" and "IDX" in one.modifiers and one.operands[-2].text == "RZ":
            # From the first lane, of which only what is the same in all lanes is known here.
            self.write(one.operands[1].text, self.read(one.operands[2]))
        elif base in ("S2R", "S2UR"):
            self.write(one.operands[0].text, self._special(one.operands[1].text))
        elif calculate:
            calculate(self, one)
        else:
            self._forget(one)

    def _special(self, name: str) -> Value:
        return {"SR_TID.X": self.thread.index, "SR_CTAID.X": self.thread.block}.get(name, 0)

    def _forget(self, one: Instruction) -> None:
        """Make the results of an instruction unknown: the predicates and the register that lead its operands."""
        for operand in one.operands:
            if operand.kind == "predicate":
                if operand.text not in ("PT", "UPT"):
                    self.predicates[operand.text] = None
                continue
            if operand.kind == "register":
                self.write(operand.text, None, max(1, one.width // 4))
            return


def _next(name: str, by: int) -> str:
    if name in ("RZ", "URZ") or not by:
        return name
    letters = name.rstrip("0123456789")
    return f"{letters}{int(name[len(letters) :]) + by}"
