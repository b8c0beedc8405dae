"""The kernels of csrc/ run on the processor (emulator.h), against tensors of torch."""

import ctypes
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from reelweave.train.kernels.cuda import launch
from reelweave.train.kernels.cuda.launch import (
    AffineArgs,
    BackwardArgs,
    Dtype,
    Family,
    ForwardArgs,
    Groups,
    Modulation,
    ReduceArgs,
)
from reelweave.train.kernels.cuda.launcher import argument_blocks

CSRC = Path(__file__).parents[3] / "csrc"
TORCH_DTYPE: dict[Dtype, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAME = {dtype: name for name, dtype in TORCH_DTYPE.items()}


def cuda_headers() -> Path:
    places = [Path("/usr/local/cuda/include"), Path(sysconfig.get_path("purelib"), "nvidia/cu13/include")]
    found = [place for place in places if (place / "cuda_bf16.h").exists()]
    if not found or not shutil.which("g++"):
        pytest.skip("the emulated kernels need g++ and the headers of CUDA (cuda_bf16.h)")
    return found[0]


def compiled(command: list[str], library: Path) -> None:
    """Run a compiler; a library is there whole or not at all."""
    half = library.with_suffix(".half")
    subprocess.run([*command, "-o", str(half)], check=True)
    half.rename(library)


def build(source: Path, into: Path) -> ctypes.CDLL:
    """The library of a source, compiled where the folder does not hold it."""
    library = into / f"{source.stem}.so"
    if not library.exists():
        flags = ("-std=c++17", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC", "-w")
        emulator = str(Path(__file__).with_name("emulator.h"))
        places = ("-include", emulator, "-I", str(CSRC), "-isystem", str(cuda_headers()))
        compiled(["g++", "-x", "c++", *flags, *places, str(source)], library)
    return ctypes.CDLL(str(library))


def run(
    library: ctypes.CDLL,
    name: str,
    args: ctypes.Structure | int,
    grid: tuple[int, int] = (1, 1),
    block: tuple[int, int] = (1, 1),
    shared_bytes: int = 0,
    seed: int = 0,
) -> None:
    if grid[0] * grid[1]:
        at = ctypes.c_void_p(args if isinstance(args, int) else ctypes.addressof(args))
        library.emulate(library[name], at, *grid, *block, shared_bytes, seed)


def pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@dataclass(frozen=True)
class EmulatedLauncher:
    """Processor in place of a GPU (`reelweave.train.kernels.cuda.host`); `libraries` by the stem of their source."""

    libraries: dict[str, ctypes.CDLL]
    blocks: int = 5
    limit: int = 227 << 10
    clustered: bool = True

    def shared_limit(self, device: torch.device) -> int:
        return self.limit

    def clusters(self, device: torch.device) -> bool:
        return self.clustered

    def resident(
        self, kernel: str, device: torch.device, threads: int, shared_bytes: int, cluster: int = 1
    ) -> int:
        return self.blocks

    def prepare(self, device, launches):
        def run_all(pointers) -> None:
            blocks, writers = argument_blocks(launches)
            for write, of_run in zip(writers, pointers, strict=False):
                if of_run:
                    write(*of_run)
            for each, args in zip(launches, blocks, strict=True):
                self.run(each.kernel, device, args, each.grid, each.block, each.shared_bytes)

        return run_all

    def run(self, kernel, device, args, grid, block, shared_bytes=0) -> None:
        library = next(library for library in self.libraries.values() if hasattr(library, kernel))
        run(library, kernel, args, grid, block, shared_bytes)


@dataclass(frozen=True)
class Problem:
    """What an operator takes; `branch` decides the family."""

    x_ND: torch.Tensor
    scale_GD: torch.Tensor
    shift_GD: torch.Tensor
    offsets: list[int] | None = None
    rms: bool = False
    weight_D: torch.Tensor | None = None
    bias_D: torch.Tensor | None = None
    branch_ND: torch.Tensor | None = None
    gate_GD: torch.Tensor | None = None

    @property
    def family(self) -> Family:
        return "layer_norm_modulate" if self.branch_ND is None else "gate_residual_norm_modulate"

    @property
    def names(self) -> tuple[Dtype, Dtype]:
        return NAME[self.x_ND.dtype], NAME[self.scale_GD.dtype]

    def inputs(self) -> list[torch.Tensor]:
        every = (
            self.x_ND,
            self.scale_GD,
            self.shift_GD,
            self.weight_D,
            self.bias_D,
            self.branch_ND,
            self.gate_GD,
        )
        return [tensor for tensor in every if tensor is not None]

    def group_of_row(self) -> torch.Tensor:
        rows, groups = len(self.x_ND), len(self.scale_GD)
        if self.offsets is None:
            return torch.arange(rows) // max(1, rows // groups)
        return torch.repeat_interleave(torch.arange(groups), torch.tensor(self.offsets).diff())

    def reference(self, stored_h_ND: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """h (unrounded) and y, in fp64 throughout when the inputs are; y is of the h that was stored."""
        group_N = self.group_of_row()
        exact_h_ND = self.x_ND.double()
        if self.branch_ND is not None:
            gate_ND = 1.0 if self.gate_GD is None else self.gate_GD.double()[group_N]
            exact_h_ND = exact_h_ND + gate_ND * self.branch_ND.double()
        h_ND = exact_h_ND + (stored_h_ND.double() - exact_h_ND).detach()
        mean_N1 = 0.0 if self.rms else h_ND.mean(1, keepdim=True)
        n_ND = (h_ND - mean_N1) * ((h_ND - mean_N1).square().mean(1, keepdim=True) + 1e-6).rsqrt()
        n_ND = n_ND if self.weight_D is None else n_ND * self.weight_D.double()
        n_ND = n_ND if self.bias_D is None else n_ND + self.bias_D.double()
        return exact_h_ND, n_ND * (1 + self.scale_GD.double()[group_N]) + self.shift_GD.double()[group_N]


@dataclass(frozen=True)
class Emulated:
    """The operators over emulated kernels.

    `tiled` takes the D-tile path, `resident` sets the blocks, `shared_limit` and `most_teams` the rows that one
    has at once: as many as fit, where launches take one by default.
    """

    kernels: dict[Family, ctypes.CDLL]
    reductions: ctypes.CDLL
    tiled: bool = False
    resident: int = 5
    seed: int = 0
    shared_limit: int = 227 << 10
    most_teams: int = launch.MOST_TEAMS

    def shared_args(self, problem: Problem) -> tuple[Modulation, Groups, torch.Tensor | None]:
        rows, groups = len(problem.x_ND), len(problem.scale_GD)
        offsets = None if problem.offsets is None else torch.tensor(problem.offsets, dtype=torch.int32)
        modulation = Modulation(
            *map(
                pointer,
                (problem.scale_GD, problem.shift_GD, problem.gate_GD, problem.weight_D, problem.bias_D),
            ),
            problem.scale_GD.stride(0),
            problem.shift_GD.stride(0),
            0 if problem.gate_GD is None else problem.gate_GD.stride(0),
        )
        return modulation, Groups(pointer(offsets), max(1, rows // groups), groups, rows), offsets

    def forward(self, problem: Problem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """h, y, mean and rstd (h is x where there is no gate)."""
        rows, dim = problem.x_ND.shape
        x, m = problem.names
        h_ND, y_ND = (torch.full((rows, dim), torch.nan, dtype=problem.x_ND.dtype) for _ in range(2))
        mean_N, rstd_N = torch.zeros(rows), torch.full((rows,), torch.nan)
        modulation, groups, _offsets = self.shared_args(problem)
        args = ForwardArgs(
            *map(pointer, (problem.x_ND, problem.branch_ND, h_ND, y_ND, mean_N, rstd_N)),
            modulation,
            groups,
            rows,
            problem.x_ND.stride(0),
            0 if problem.branch_ND is None else problem.branch_ND.stride(0),
            dim,
            problem.rms,
            1e-6,
        )
        kernels = self.kernels[problem.family]
        geometry = None if self.tiled else launch.forward_launch(problem.family, dim, x, True)
        if geometry is None:
            run(kernels, f"{problem.family}_forward_tiled_{x}_{m}", args, (rows, 1), (64, 1), seed=self.seed)
        else:
            name = launch.forward_name(problem.family, x, m, geometry)
            grid, block = (launch.blocks(rows, geometry.rows), 1), (geometry.threads, 1)
            run(kernels, name, args, grid, block, seed=self.seed)
        return (problem.x_ND if problem.branch_ND is None else h_ND), y_ND, mean_N, rstd_N

    def backward(
        self, problem: Problem, dy_ND: torch.Tensor, dh_ND: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """Gradients in the order of `Problem.inputs`."""
        rows, dim = problem.x_ND.shape
        x, m = problem.names
        count = len(problem.scale_GD)
        per_token = count == rows > 1
        h_ND, _, mean_N, rstd_N = self.forward(problem)
        modulation, groups, _offsets = self.shared_args(problem)
        per_block = launch.rows_per_block(rows, self.resident)
        dx_ND, dbranch_ND = (torch.full((rows, dim), torch.nan, dtype=problem.x_ND.dtype) for _ in range(2))
        dscale_GD, dshift_GD, dgate_GD = (
            torch.full((count, dim), torch.nan, dtype=problem.scale_GD.dtype) for _ in range(3)
        )
        gated = problem.gate_GD is not None
        parts = 3 if problem.branch_ND is not None and not per_token else 2
        sum_groups = Groups(None, max(1, rows), 1, rows) if per_token else groups
        slots = launch.slots(rows, per_block, sum_groups.count)
        partials = torch.full((slots, parts, dim), torch.nan)
        row_sums_N2 = torch.full((rows, 2), torch.nan)
        args = BackwardArgs(
            *map(pointer, (h_ND, dy_ND, problem.branch_ND, dh_ND, dx_ND, dbranch_ND)),
            *map(pointer, (dscale_GD, dshift_GD, dgate_GD, mean_N, rstd_N, partials, row_sums_N2)),
            modulation,
            groups,
            rows,
            per_block,
            h_ND.stride(0),
            dy_ND.stride(0),
            0 if problem.branch_ND is None else problem.branch_ND.stride(0),
            0 if dh_ND is None else dh_ND.stride(0),
            dim,
            problem.rms,
        )
        kernels, geometry = self.kernels[problem.family], None
        if not self.tiled:
            geometry = launch.backward_launch(
                problem.family, dim, x, True, self.shared_limit, True, per_token, self.most_teams
            )
        across = launch.blocks(rows, per_block)
        if geometry is None:
            token = "_token" if per_token else ""
            rows_name = f"{problem.family}_backward_rows_tiled_{x}_{m}"
            columns_name = f"{problem.family}_backward_columns_tiled{token}_{x}_{m}"
            run(kernels, rows_name, args, (rows, 1), (64, 1), seed=self.seed)
            run(kernels, columns_name, args, (across, -(-dim // 64)), (64, 1), seed=self.seed)
        else:
            name = launch.backward_name(problem.family, x, m, geometry, per_token)
            grid = (geometry.cluster * across, 1)
            block = geometry.threads, geometry.teams
            run(kernels, name, args, grid, block, geometry.shared_bytes, self.seed)
        affine = [torch.full((dim,), torch.nan, dtype=problem.scale_GD.dtype) for _ in range(2)]
        sums_G2D = torch.full((count, 2, dim), torch.nan)
        reduce_args = ReduceArgs(
            pointer(partials),
            None if per_token else pointer(sums_G2D),
            *map(pointer, affine if per_token else (dscale_GD, dshift_GD)),
            pointer(dgate_GD) if parts == 3 else None,
            *((None, None) if per_token else map(pointer, (problem.weight_D, problem.bias_D))),
            sum_groups,
            rows,
            per_block,
            dim,
            parts,
        )
        block = launch.reduce_block(sum_groups.count, dim, slots)
        run(self.reductions, f"reduce_{m}", reduce_args, (sum_groups.count, -(-dim // block[0])), block)
        if not per_token:
            affine_args = AffineArgs(
                *map(pointer, (sums_G2D, problem.scale_GD, *affine)), problem.scale_GD.stride(0), count, dim
            )
            run(self.reductions, f"reduce_affine_{m}", affine_args, (-(-dim // 256), 1), (256, 1))
        return [
            *(dx_ND, dscale_GD, dshift_GD),
            *([] if problem.weight_D is None else [affine[0]]),
            *([] if problem.bias_D is None else [affine[1]]),
            *([] if problem.branch_ND is None else [dbranch_ND]),
            *([dgate_GD] if gated else []),
        ]
