"""The reading of machine code by which kernels' costs are predicted, on known code of sm_90."""

from collections import Counter
from dataclasses import replace

import pytest

from reelweave.loader.errors import RunError
from tests.bench.sass.counts import LATENCY, RowCost, critical_path, passes, row_cost
from tests.bench.sass.machine import Issued, Machine, Thread
from tests.bench.sass.model import Gpu, Kernel, share_of_copy, shares
from tests.bench.sass.text import STEP, Instruction, functions, instruction

# A loop over c[0x0][0x210] rows: one instruction that is on in the first warp only, one that is always off, a branch
# around two instructions that the second warp takes, a vector a lane, and a word that all lanes share.
LOOP = """
    S2R R0, SR_TID.X
    LDC R2, c[0x0][0x210]
    ISETP.GE.AND P1, PT, R0, 0x20, PT
    IMAD.WIDE.U32 R4, R0, 0x10, RZ
    @P1 BRA 0x70
    FADD R8, R8, R8
    FADD R8, R8, R8
    @!P1 MOV R9, 0x1
    @!PT LDS RZ, [RZ]
    LDG.E.128.CONSTANT R12, desc[UR4][R4.64+0x100]
    LDS R10, [UR6]
    STG.E.128 desc[UR4][R4.64], R12
    VIADD R2, R2, 0xffffffff
    ISETP.NE.AND P0, PT, R2, RZ, PT
    @P0 BRA 0x40
    EXIT
"""


def code(text: str) -> list[Instruction]:
    lines = [line.strip() for line in text.strip().splitlines()]
    return [instruction(STEP * place, line) for place, line in enumerate(lines)]


def trace(text: str, index: int = 0, arguments: bytes = b"\3") -> list[Issued]:
    return list(Machine(code(text), Thread(index, arguments, 64)).run())


def state(text: str, *names: str, arguments: bytes = b"") -> list[int | None]:
    machine = Machine(code(f"{text}\nEXIT"), Thread(0, arguments, 64))
    list(machine.run())
    return [machine.raw(name) for name in names]


def test_a_loop_is_counted_turn_by_turn_with_what_is_off() -> None:
    issued = Counter(one.instruction.base for one in trace(LOOP))
    assert issued["FADD"] == 6
    assert issued["LDS"] == 6  # half of them with their predicate off
    assert [one.on for one in trace(LOOP) if one.instruction.guard == "!PT"] == [False] * 3
    assert Counter(one.instruction.base for one in trace(LOOP, index=32))["FADD"] == 0


def test_the_cost_of_a_row_is_the_mean_of_the_warps() -> None:
    cost = row_cost(code(LOOP), 64, lambda rows: rows.to_bytes(4, "little"))
    assert cost.issued == (11 + 9) / 2
    assert cost.pipes == {"alu": 3, "control": 2, "fma": 1, "memory": 4}
    assert cost.wavefronts == 4 + 1 + 4


def test_a_block_of_one_row_is_counted_whole() -> None:
    whole = row_cost(code(LOOP), 32, lambda rows: rows.to_bytes(4, "little"), few=0)
    assert whole.issued == len(trace(LOOP, arguments=b"\1"))


def test_a_team_knows_its_number_from_the_first_lane_and_takes_its_part_of_a_blocks_rows() -> None:
    text = "S2R R0, SR_TID.Y\nSHFL.IDX PT, R1, R0, RZ, 0x1f\nLDC R2, c[0x0][0x4]\nEXIT"
    machine = Machine(code(text), Thread(1, b"", 64, teams=3))
    list(machine.run())
    assert [machine.raw(name) for name in ("R1", "R2")] == [0, 3]
    given: list[int] = []

    def arguments(rows: int) -> bytes:
        given.append(rows)
        return (rows // 3).to_bytes(4, "little")

    assert row_cost(code(LOOP), 64, arguments, teams=3) == row_cost(
        code(LOOP), 64, lambda n: n.to_bytes(4, "little")
    )
    assert sorted(set(given)) == [18, 54]


def test_teams_hide_as_blocks_do() -> None:
    alone, together = kernel(300, resident=6), replace(kernel(300, resident=1), teams=6)
    assert shares(together, Gpu()) == shares(alone, Gpu())


def test_a_branch_on_what_memory_gives_is_refused() -> None:
    text = "LDG.E R0, desc[UR4][R2.64]\nISETP.NE.AND P0, PT, R0, RZ, PT\n@P0 BRA 0x0\nEXIT"
    with pytest.raises(RunError, match="BRA at 0x20 depends on P0"):
        trace(text)


def test_what_may_not_have_run_leaves_an_unknown_register() -> None:
    text = "FSETP.GEU.AND P0, PT, R1, R2, PT\nMOV R0, 0x1\n@P0 MOV R0, 0x2"
    assert state(text, "R0") == [None]


def test_a_thread_that_does_not_end_is_refused() -> None:
    with pytest.raises(RunError, match="not ended"):
        list(Machine(code("BRA 0x0"), Thread(0, b"", 32)).run(limit=100))


ONE = "ULDC.64 UR4, c[0x0][0x210]\nUISETP.LT.U32.AND UP0, UPT, UR4, 0x2, UPT"
TWO = "UISETP.LT.AND.EX UP0, UPT, UR5, RZ, UPT, UP0\nUSEL UR6, UR4, 0x9, UP0"
INTEGERS = [
    ("MOV R0, 0xffffffff\nIADD3 R1, P0, R0, 0x2, RZ\nIADD3.X R2, RZ, 0x5, RZ, P0, !PT", ("R1", "R2"), [1, 6]),
    ("MOV R0, 0x7\nIADD3 R1, P0, R0, -R0, RZ\nIMAD.X R2, R0, 0x1, ~R0, P0", ("R1", "R2"), [0, 0]),
    ("MOV R0, 0xfffffffe\nIMAD.WIDE R2, R0, 0x10, RZ", ("R2", "R3"), [0xFFFFFFE0, 0xFFFFFFFF]),
    ("MOV R0, 0xfffffffe\nIMAD.WIDE.U32 R2, R0, 0x10, RZ", ("R2", "R3"), [0xFFFFFFE0, 0xF]),
    ("MOV R0, 0x80000001\nLEA R1, P0, R0, 0x3, 0x1\nLEA.HI.X R2, R0, RZ, RZ, 0x1, P0", ("R1", "R2"), [5, 1]),
    ("MOV R0, 0xfffffffd\nSHF.R.S32.HI R1, RZ, 0x1, R0", ("R1",), [0xFFFFFFFE]),
    ("MOV R0, 0xfffffffd\nLEA.HI R1, R0, R0, RZ, 0x1", ("R1",), [0xFFFFFFFE]),
    ("MOV R0, 0xc\nLOP3.LUT R1, R0, 0xa, RZ, 0xc0, !PT", ("R1",), [8]),
    ("MOV R0, 0xc\nLOP3.LUT R1, R0, 0xa, RZ, 0xfc, !PT", ("R1",), [14]),
    ("MOV R0, 0x12345678\nPRMT R1, R0, 0x7632, R0", ("R1",), [0x12341234]),
    ("HFMA2.MMA R2, -RZ, RZ, 0, 5.9604644775390625e-08", ("R2",), [1]),
    ("MOV R0, 0xfffffffd\nVIMNMX.RELU R1, R0, 0x20, PT", ("R1",), [0]),
    ("MOV R0, 0x9\nVIADDMNMX.RELU R1, R0, 0x40, 0x20, PT", ("R1",), [32]),
    ("MOV R0, 0x9\nVIADDMNMX R1, R0, -0x20, 0x20, !PT", ("R1",), [32]),
    ("MOV R0, 0x9\nIADD3.NEW R1, R0, R0, RZ", ("R1",), [None]),
    (f"{ONE}\n{TWO}", ("UR4", "UR5", "UR6"), [1, 2, 9]),
    ("MOV R0, 0x1\nPLOP3.LUT P0, P1, PT, PT, PT, 0x80, 0x0\nSEL R1, R0, 0x3, P1", ("R1",), [3]),
    ("MOV R0, 0x71\nPLOP3.LUT P0, P1, PT, PT, PT, 0x80, 0x0\nP2R R1, PR, R0, 0x3", ("R1",), [0x71]),
    ("MOV R0, 0x1\nPLOP3.LUT P0, P1, PT, PT, PT, 0x80, 0x0\nSEL R1, R0, 0x3, P0", ("R1",), [1]),
]


@pytest.mark.parametrize(("text", "names", "wanted"), INTEGERS)
def test_integer_instructions(text: str, names: tuple[str, ...], wanted: list[int | None]) -> None:
    arguments = b"\1\0\0\0\2\0\0\0"
    assert state(text, *names, arguments=arguments) == wanted


def test_a_division_by_the_reciprocal_is_followed() -> None:
    """The code that nvcc makes of an unsigned quotient, 1000 by 7."""
    text = """
        MOV R0, 0x3e8
        MOV R6, 0x7
        I2F.U32.RP R2, R6
        MUFU.RCP R2, R2
        IADD3 R4, R2, 0xffffffe, RZ
        F2I.FTZ.U32.TRUNC.NTZ R5, R4
        MOV R4, RZ
        IMAD.MOV R7, RZ, RZ, -R5
        IMAD R7, R7, R6, RZ
        IMAD.HI.U32 R5, R5, R7, R4
        IMAD.HI.U32 R2, R5, R0, RZ
        IMAD.MOV R5, RZ, RZ, -R2
        IMAD R5, R6, R5, R0
        ISETP.GE.U32.AND P0, PT, R5, R6, PT
        @P0 IADD3 R5, R5, -R6, RZ
        @P0 VIADD R2, R2, 0x1
        ISETP.GE.U32.AND P0, PT, R5, R6, PT
        @P0 VIADD R2, R2, 0x1
    """
    assert state(text.strip(), "R2") == [142]


def test_a_call_returns() -> None:
    text = "MOV R2, 0x30\nCALL.REL.NOINC 0x50\nEXIT\nMOV R3, 0x5\nEXIT\nRET.REL.NODEC R2 0x0"
    assert [one.instruction.base for one in trace(text)] == ["MOV", "CALL", "RET", "MOV", "EXIT"]


@pytest.mark.parametrize(
    ("text", "stride", "wanted"),
    [
        ("LDG.E.128.CONSTANT R0, desc[UR4][R2.64]", 16, 4),
        ("LDG.E.128.CONSTANT R0, desc[UR4][R2.64]", 32, 8),
        ("LDG.E R0, desc[UR4][R2.64]", 0, 1),
        ("LDGSTS.E.BYPASS.128 [R0], desc[UR4][R2.64]", 16, 8),
        ("SHFL.BFLY PT, R0, R1, 0x10, 0x1f", 0, 1),
        ("FADD R0, R1, R2", 0, 0),
    ],
)
def test_wavefronts_follow_from_the_distance_of_neighbours(text: str, stride: int, wanted: int) -> None:
    one = instruction(0, text)
    assert passes(Issued(one, True, 4096), Issued(one, True, 4096 + stride)) == wanted


def test_a_load_that_is_read_at_once_is_waited_for() -> None:
    """A prefetch whose register is moved on a few instructions later is none."""
    load, use = "LDG.E R0, desc[UR4][R2.64]", "R2UR UR4, R0"
    work = "\n".join(["FADD R8, R8, R9"] * 400)
    early, late = (
        critical_path(trace(text + "\nEXIT")) for text in (f"{load}\n{use}\n{work}", f"{load}\n{work}\n{use}")
    )
    assert early > late + 600


def test_functions_are_told_apart() -> None:
    text = "\t\tFunction : one\n /*0000*/ EXIT ; /* 0x0 */\n\t\tFunction : two\n /*0000*/ NOP ;\n /*0010*/ EXIT ;\n"
    assert {name: len(found) for name, found in functions(text).items()} == {"one": 1, "two": 2}
    assert list(functions(text, lambda name: name == "two")) == ["two"]


def kernel(issued: float, resident: int = 8) -> Kernel:
    return Kernel(RowCost(issued, {"fma": issued / 2}, 10, 500), 96, resident, 6144, 6144)


def test_a_kernel_that_asks_for_more_issue_slots_than_there_are_stays_below_copy_speed() -> None:
    gpu = Gpu()
    assert shares(kernel(498), gpu).issue == pytest.approx(1, rel=0.01)
    slow, quick = (share_of_copy([kernel(issued)], 1 << 20, gpu, 6144 << 20) for issued in (900, 200))
    assert slow < 1 / shares(kernel(900), gpu).issue < 0.6
    assert 0.9 < quick < 1


WAIT = """
    MOV R2, 0x2
    STAS.64 [R46.64], R44
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R49+UR11+0x200], R50
    @!P0 BRA 0x20
    VIADD R2, R2, 0xffffffff
    ISETP.NE.AND P1, PT, R2, RZ, PT
    @P1 BRA 0x10
    EXIT
"""


def test_what_another_block_of_a_cluster_sends_is_waited_for() -> None:
    issued = Counter(one.instruction.base for one in trace(WAIT))
    assert (issued["STAS"], issued["SYNCS"]) == (2, 2)
    assert critical_path(trace(WAIT)) >= 2 * LATENCY["SYNCS"]
    assert row_cost(code(WAIT), 64, lambda _: b"", 0).wavefronts == 2


def test_blocks_of_a_cluster_share_a_row() -> None:
    alone = kernel(300)
    four = replace(alone, row_bytes=4 * alone.row_bytes, cluster=4)
    assert shares(four, Gpu()) == shares(alone, Gpu())
    rows = Gpu().sms * 8
    assert share_of_copy([four], rows // 4, Gpu(), 1e6) == pytest.approx(
        share_of_copy([alone], rows, Gpu(), 1e6)
    )


def test_fewer_blocks_hide_less() -> None:
    assert shares(kernel(300, resident=1), Gpu()).time > shares(kernel(300, resident=8), Gpu()).time


def test_blocks_that_fit_follow_registers_threads_and_shared_memory() -> None:
    gpu = Gpu()
    assert gpu.resident(192, 64, 18432) == 5
    assert gpu.resident(192, 88, 0) == 3
    assert gpu.resident(96, 96, 0) == 6  # a scheduler's registers hold five warps, so 20 in all
    assert gpu.resident(256, 32, 0) == 8
    assert gpu.resident(512, 32, 200 << 10) == 1
