"""What the kernels' machine code asks of an H200, and the share of a copy's bandwidth that this allows.

    python -m tests.bench.issue_slots [--clock 1.98e9] [--copy 4.3e12] [--committed]

Prints Markdown. Predicted, not measured: no GPU is needed. nvcc compiles the kernels for sm_90, cuobjdump disassembles
them, and the integer path of their threads is executed (tests/bench/sass), which counts what a row issues.
`--committed` writes csrc/instructions.json, above which no kernel may rise (tests/train/kernels/test_csrc.py).
"""

import argparse
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from reelweave.loader.errors import RunError
from reelweave.train.kernels.cuda import gates, host_qk, launch, rules
from reelweave.train.kernels.cuda.gates import Cubin, Resources
from reelweave.train.kernels.cuda.launch import Direction, Family
from tests.bench.sass.counts import RowCost, row_cost
from tests.bench.sass.model import Gpu, Kernel, share_of_copy, shares
from tests.bench.sass.text import Instruction, functions

ARCHITECTURE = 90
CSRC = Path(__file__).parents[2] / "csrc"
COMMITTED = CSRC / "instructions.json"
SOURCES = ("layer_norm_modulate.cu", "gate_residual_norm_modulate.cu", "qk_norm.cu")
WIDTHS = (1536, 2048, 3072, 5120, 8192, 10240, 12288, 16384, 20480)
ROWS = (8192, 32768)
FAMILIES: tuple[Family, ...] = ("layer_norm_modulate", "gate_residual_norm_modulate")
HEAD = 128
SHARED_LIMIT = 227 << 10
BYTES: Mapping[tuple[str, str], int] = {
    ("layer_norm_modulate", "forward"): 4,
    ("layer_norm_modulate", "backward"): 6,
    ("gate_residual_norm_modulate", "forward"): 8,
    ("gate_residual_norm_modulate", "backward"): 12,
    ("qk_norm", "forward"): 4,
    ("qk_norm", "backward"): 6,
}
"""Bytes an element of bfloat16 that one pass must move; queries and keys count as rows each."""
POINTERS = range(1 << 36, 1 << 40, 1 << 32)


@dataclass(frozen=True)
class Compiled:
    """The kernels of a source: their resources and instructions."""

    resources: Mapping[str, Resources]
    code: Mapping[str, Sequence[Instruction]]


@dataclass(frozen=True)
class Case:
    """A pass of an operator at a width: the launches that serve it, bfloat16 with fp32 modulation."""

    operator: str
    direction: Direction
    dim: int
    kernels: tuple[str, ...]
    found: tuple[Kernel, ...]

    @property
    def partial_bytes(self) -> int:
        """Bytes of the sums that a block writes."""
        parts = {"layer_norm_modulate": 2, "gate_residual_norm_modulate": 3, "qk_norm": 0}[self.operator]
        return parts * self.dim * 4 * (self.direction == "backward")


def compiled(into: Path) -> Compiled:
    """Compile and disassemble the kernels for sm_90.

    Raises:
        RunError: there is no nvcc or no cuobjdump.
    """
    return read(gates.compile_all([CSRC / name for name in SOURCES], into, (ARCHITECTURE,)))


def read(cubins: Sequence[Cubin]) -> Compiled:
    """Disassemble cubins of sm_90.

    Raises:
        RunError: there is no cuobjdump.
    """
    return Compiled(
        {name: used for cubin in cubins for name, used in cubin.kernels.items()},
        {name: code for cubin in cubins for name, code in functions(disassembled(cubin), _modelled).items()},
    )


def _modelled(name: str) -> bool:
    return "_bf16_f32" in name or (
        name.startswith(("qk_norm_forward", "qk_norm_backward")) and name.endswith("_bf16")
    )


def disassembled(cubin: Cubin) -> str:
    """Return what cuobjdump says of a cubin.

    Raises:
        RunError: there is no cuobjdump.
    """
    tool = gates.cuobjdump()
    if tool is None:
        raise RunError("cuobjdump is missing: it comes with the CUDA toolkit and inside Triton's wheel")
    return subprocess.run([tool, "-sass", cubin.path], capture_output=True, text=True, check=True).stdout


def arguments(family: Family, direction: Direction, dim: int) -> Callable[[int], bytes]:
    """Return a kernel's arguments by rows per block: one group, contiguous rows, no affine weight, layer norm."""
    gated = family == "gate_residual_norm_modulate"

    def of(per_block: int) -> bytes:
        rows = 1 << 16
        x, branch, h, y, mean, rstd, scale, shift, gate, dy, dh, dx, partials, sums = POINTERS[:14]
        modulation = launch.Modulation(scale, shift, gate if gated else None, None, None, *[3 * dim] * 3)
        groups = launch.Groups(None, rows, 1, rows)
        if direction == "forward":
            tensors = (x, branch, h, y, mean, rstd)
            return bytes(launch.ForwardArgs(*tensors, modulation, groups, rows, dim, dim, dim, 0, 1e-6))
        tensors = (x, dy, branch, dh, dx, y, None, None, None, mean, rstd, partials, sums)
        return bytes(launch.BackwardArgs(*tensors, modulation, groups, rows, per_block, *[dim] * 4, dim, 0))

    return of


def pair_arguments(dim: int, lanes: int, across: bool) -> Callable[[int], bytes]:
    """Return the arguments of `qk_norm` by rows per block; across heads pairs of channels rotate, else halves."""

    def of(per_block: int) -> bytes:
        rows, heads = 1 << 16, dim // HEAD
        x, dy, y, rstd, weight, partials, cos, sin = POINTERS[:8]
        strides = rules.struct("HeadStrides")(rows * dim, dim, HEAD)
        side = rules.struct("Heads")(x, dy, y, rstd, weight, partials, strides, strides, rows, rows, heads)
        block = rules.struct("QkNormArgs")()
        block.side[0], block.side[1] = side, side
        block.cos, block.sin, block.rotation_token = cos, sin, HEAD // 2
        block.rows_per_cta, block.q_blocks = per_block, rows // per_block
        block.width, block.lanes, block.interleaved, block.float_weights = HEAD, lanes, int(across), 1
        block.eps = 1e-6
        return bytes(block)

    return of


class Costs:
    """Costs of kernels, counted once each at each width."""

    def __init__(self, compiled: Compiled, gpu: Gpu) -> None:
        self.compiled, self.gpu = compiled, gpu
        self.found: dict[tuple[str, int], RowCost] = {}

    def kernel(
        self,
        name: str,
        threads: int,
        shared_bytes: int,
        dim: int,
        element_bytes: int,
        given: Callable[[int], bytes],
        ahead: float,
        few: int = 6,
        passes: int = 1,
        cluster: int = 1,
        rows: int = 1,
        teams: int = 1,
    ) -> Kernel:
        """Return a launch with its cost."""
        key = (name, threads)
        if key not in self.found:
            self.found[key] = row_cost(self.compiled.code[name], threads, given, few, rows, teams)
        registers = self.compiled.resources[name].registers
        resident = self.gpu.resident(threads * teams, registers, shared_bytes)
        return Kernel(self.found[key], threads, resident, dim * element_bytes, ahead, passes, cluster, teams)

    def norm(self, family: Family, direction: Direction, dim: int) -> Case:
        """Return the launches of a norm at a width: of its register kernel, or of the tiled path."""
        given = arguments(family, direction, dim)
        wanted = BYTES[family, direction]
        if direction == "forward" and (fits := launch.forward_launch(family, dim, "bf16", True)):
            name = launch.forward_name(family, "bf16", "f32", fits)
            asked = fits.rows * dim * 2 * (2 if "gate" in family else 1)
            kernel = self.kernel(name, fits.threads, 0, dim, wanted, given, asked, few=0, rows=fits.rows)
            return Case(family, direction, dim, (name,), (kernel,))
        found = launch.backward_launch(family, dim, "bf16", True, SHARED_LIMIT, True)
        if direction == "backward" and found:
            name = launch.backward_name(family, "bf16", "f32", found)
            streams = 4 if "gate" in family else 2
            stages = launch.ring_rows(2 * streams)
            ahead = (stages - 1) / stages * launch.ring_bytes(2 * streams, found.elements, found.threads)
            kernel = self.kernel(
                name,
                found.threads,
                found.shared_bytes,
                dim,
                wanted,
                given,
                ahead,
                cluster=found.cluster,
                teams=found.teams,
            )
            return Case(family, direction, dim, (name,), (kernel,))
        threads = launch.tiled_threads(dim)
        steps = ("forward",) if direction == "forward" else ("rows", "columns")
        names, kernels = [], []
        for step in steps:
            name = launch.tiled_name(family, step, "bf16", "f32")  # type: ignore[arg-type]
            whole = step != "columns"
            passes = 1 if whole else launch.tiles(dim, threads)
            moved = wanted if step == "forward" else wanted - 2 if step == "columns" else 4
            kernels.append(self.kernel(name, threads, 0, dim, moved, given, 0, 0 if whole else 6, passes))
            names.append(name)
        return Case(family, direction, dim, tuple(names), tuple(kernels))

    def pair(self, direction: Direction, dim: int, across: bool) -> Case | None:
        """Return the launch of queries and keys, `dim` channels of each; None where it is not served."""
        found = host_qk.pair_launch(
            direction, dim // HEAD, HEAD, "bf16", across, not across, True, SHARED_LIMIT
        )
        if found is None:
            return None
        name = host_qk.kernel_name(direction, across, "bf16")
        stages = launch.ring_rows(2 if direction == "forward" else 4)
        kernel = self.kernel(
            name,
            found.threads,
            found.shared_bytes,
            dim,
            BYTES["qk_norm", direction],
            pair_arguments(dim, found.lanes, across),
            (stages - 1) / stages * found.shared_bytes,
        )
        return Case("qk_norm", direction, dim, (name,), (kernel,))

    def every(self) -> list[Case]:
        """Return all cases of the table."""
        directions: tuple[Direction, ...] = ("forward", "backward")
        norms = [self.norm(family, way, dim) for family in FAMILIES for way in directions for dim in WIDTHS]
        pairs = [
            self.pair(way, dim, across) for across in (False, True) for way in directions for dim in WIDTHS
        ]
        return [*norms, *(case for case in pairs if case)]


def instruction_table(cases: Sequence[Case]) -> dict[str, float]:
    """Return issue slots per warp and row of each kernel, at the narrowest width that it serves."""
    table: dict[str, float] = {}
    for case in cases:
        for name, kernel in zip(case.kernels, case.found, strict=True):
            if "tiled" not in name:
                table.setdefault(name, round(kernel.cost.issued, 1))
    return dict(sorted(table.items()))


def line(case: Case, gpu: Gpu) -> str:
    """Return a row of the table."""
    name = case.kernels[0] if len(case.kernels) == 1 else f"{case.kernels[0]} and columns"
    first = case.found[-1]
    used = shares(first, gpu)
    both = 2 if case.operator == "qk_norm" else 1
    reached = [
        share_of_copy(
            list(case.found),
            rows * both,
            gpu,
            rows * both * case.dim * BYTES[case.operator, case.direction],
            case.partial_bytes,
        )
        for rows in ROWS
    ]
    limits = " | ".join(
        f"{100 * one:.0f}" for one in (used.issue, used.pipe, used.l1, used.chain, used.flight)
    )
    shown = " | ".join(f"{100 * one:.0f}" for one in reached)
    return (
        f"| {name} | {case.dim} | {first.cost.issued:.0f} | {first.cost.wavefronts:.0f} | {first.cost.chain:.0f} | "
        f"{first.threads} x {first.teams} x {first.resident} | {limits} | {shown} |"
    )


def main() -> None:
    """Print the table of this checkout's kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clock", type=float, default=Gpu.clock)
    parser.add_argument("--copy", type=float, default=Gpu.copy)
    parser.add_argument("--committed", action="store_true")
    options = parser.parse_args()
    gpu = Gpu(clock=options.clock, copy=options.copy)
    with TemporaryDirectory() as into:
        cases = Costs(compiled(Path(into)), gpu).every()
    if options.committed:
        COMMITTED.write_text(json.dumps(instruction_table(cases), indent=2) + "\n")
    rows = " | ".join(f"{count // 1024}k rows" for count in ROWS)
    print(
        f"| kernel | D | issued | L1 | chain | block | issue % | pipe % | L1 % | chain % | flight % | {rows} |"
    )
    print("|---" * (11 + len(ROWS)) + "|")
    for case in cases:
        print(line(case, gpu), flush=True)


if __name__ == "__main__":
    main()
