"""Names and geometry of the kernels of csrc/ as pure functions of the numbers in csrc/rules.h.

The host side and the emulator of the tests use them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reelweave.train.kernels.cuda.rules import backward_classes, constant, forward_classes, struct

Dtype = Literal["f32", "bf16", "f16"]
Family = Literal["layer_norm_modulate", "gate_residual_norm_modulate"]
Direction = Literal["forward", "backward"]

DTYPE_BYTES: dict[Dtype, int] = {"f32": 4, "bf16": 2, "f16": 2}
WARP = constant("Warp")
VECTOR_BYTES = constant("VectorBytes")
TILED_THREADS = constant("TiledThreads")
AFFINE_THREADS = constant("AffineThreads")
MOST_TEAMS = constant("MostTeams")
CLUSTER_OLDEST = constant("ClusterOldest")
"""Oldest major compute capability whose blocks may form clusters."""

Modulation, Groups = struct("Modulation"), struct("Groups")
ForwardArgs, BackwardArgs = struct("ForwardArgs"), struct("BackwardArgs")
ReduceArgs, AffineArgs = struct("ReduceArgs"), struct("AffineArgs")


@dataclass(frozen=True)
class ForwardLaunch:
    """One launch of a forward kernel: `threads` and `rows` a block.

    `vectors` and `largest` name the class (vectors of a row that a thread holds, largest block) of csrc/instances.cuh.
    """

    vectors: int
    largest: int
    threads: int
    rows: int


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of a backward kernel: `teams` of `threads` a block, `shared_bytes` of dynamic shared memory.

    `elements`, `largest` and `cluster` name the class (elements a thread, largest team, blocks that share a row) of
    csrc/instances.cuh.
    """

    elements: int
    largest: int
    threads: int
    shared_bytes: int
    cluster: int = 1
    teams: int = 1


def ring_rows(row_bytes: int) -> int:
    """Return the rows of a ring whose rows have ``row_bytes`` a column in all streams."""
    if row_bytes > constant("NarrowBytes"):
        return constant("ShallowRing")
    return constant("DeepRing" if row_bytes > constant("ThinBytes") else "ThinRing")


def ring_bytes(row_bytes: int, elements: int, threads: int) -> int:
    """Return the shared memory of a team's ring."""
    return ring_rows(row_bytes) * row_bytes * elements * threads


def forward_launch(family: Family, dim: int, x: Dtype, aligned: bool) -> ForwardLaunch | None:
    """The forward kernel that serves a row of `dim`, or None where only the tiled path does.

    Args:
        family: The operator family.
        dim: D, columns of a row.
        x: Type of the activations.
        aligned: Every pointer and row (rows of x and of the modulation) begins at a multiple of 16 bytes.
    """
    size = VECTOR_BYTES // DTYPE_BYTES[x]
    gated = family == "gate_residual_norm_modulate"
    fitting = [
        kernel_class
        for kernel_class in forward_classes(gated)
        if dim <= kernel_class[0] * kernel_class[1] * size
    ]
    if not aligned or dim % size or not fitting:
        return None
    vectors, largest = fitting[0]
    threads = tiles(dim // size, vectors * WARP) * WARP
    return ForwardLaunch(vectors, largest, threads, 1 if gated else constant("ForwardRows"))


def backward_launch(
    family: Family,
    dim: int,
    x: Dtype,
    aligned: bool,
    shared_limit: int,
    clusters: bool = False,
    per_token: bool = False,
    most_teams: int = constant("Teams"),
) -> KernelLaunch | None:
    """The backward kernel that serves a row of `dim`, or None where only the tiled path does.

    Args:
        family: The operator family.
        dim: D, columns of a row.
        x: Type of the activations.
        aligned: Every pointer and row (rows of x and of the modulation) begins at a multiple of 16 bytes.
        shared_limit: Shared memory one block may ask for (sharedMemPerBlockOptin), in bytes.
        clusters: Blocks may form clusters (`CLUSTER_OLDEST`).
        per_token: Every row has its own modulation.
        most_teams: Most rows that a block works on at once, up to `MOST_TEAMS`.
    """
    size = VECTOR_BYTES // DTYPE_BYTES[x]
    fitting = [
        kernel_class
        for kernel_class in backward_classes()
        if dim <= kernel_class.elements * kernel_class.largest * kernel_class.cluster
        and (clusters or kernel_class.cluster == 1)
    ]
    if not aligned or dim % size or not fitting:
        return None
    chosen = fitting[0]
    vectors = -(-dim // size // chosen.cluster)
    threads = -(-vectors * size // (chosen.elements * WARP)) * WARP
    streams, parts = (4, 3) if family == "gate_residual_norm_modulate" else (2, 2)
    ring, sums = ring_bytes(DTYPE_BYTES[x] * streams, chosen.elements, threads), parts * 4 * dim
    if ring > shared_limit:
        return None
    block = chosen.token_block if per_token else chosen.block
    teams = max(1, min(most_teams, block // threads, (shared_limit - sums) // ring))
    shared_bytes = teams * ring + (sums if teams > 1 else 0)
    return KernelLaunch(chosen.elements, chosen.largest, threads, shared_bytes, chosen.cluster, teams)


def rows_per_block(rows: int, resident: int) -> int:
    """Consecutive rows a block (or cluster) walks, when `resident` of them fit the device at once."""
    return max(1, -(-rows // resident))


def blocks(rows: int, per_block: int) -> int:
    """Blocks, or clusters, of a launch over `rows`."""
    return -(-rows // per_block)


def slots(rows: int, per_block: int, groups: int) -> int:
    """Slots [slots, 2 or 3, D] of fp32 the partial sums take: a block has one for each group it meets."""
    return max(1, blocks(rows, per_block) + groups - 1)


def reduce_block(groups: int, dim: int, slots: int) -> tuple[int, int]:
    """Columns and lanes of a block of the second stage, which adds up `slots` of `groups` in all.

    Tiles are narrow while there are few, so that all multiprocessors have one; a lane reads some slots.
    """
    columns, lanes = constant("ReduceColumns"), WARP // constant("ReduceColumns")
    while columns < WARP and groups * tiles(dim, columns) > constant("ReduceBlocks"):
        columns, lanes = 2 * columns, lanes // 2
    max_threads, some = constant("ReduceThreads"), constant("ReduceAhead") // 2
    while 2 * columns * lanes <= max_threads and some * lanes * groups < slots:
        lanes *= 2
    return columns, lanes


def forward_name(family: Family, x: Dtype, modulation: Dtype, launch: ForwardLaunch) -> str:
    """Name of a forward kernel."""
    return f"{family}_forward_{x}_{modulation}_v{launch.vectors}_t{launch.largest}"


def backward_name(
    family: Family, x: Dtype, modulation: Dtype, launch: KernelLaunch, per_token: bool = False
) -> str:
    """Name of a backward kernel; `per_token` is that of modulation [rows, D]."""
    token = "_token" if per_token else ""
    cluster = f"_c{launch.cluster}" if launch.cluster > 1 else ""
    return f"{family}_backward{token}_{x}_{modulation}_e{launch.elements}_t{launch.largest}{cluster}"


def tiled_name(
    family: Family,
    step: Literal["forward", "rows", "columns"],
    x: Dtype,
    modulation: Dtype,
    per_token: bool = False,
) -> str:
    """Name of a kernel of the tiled path; its backward is `rows`, then `columns` (which alone knows `per_token`)."""
    step_name = step if step == "forward" else f"backward_{step}"
    return f"{family}_{step_name}_tiled{'_token' if per_token else ''}_{x}_{modulation}"


def tiled_threads(dim: int) -> int:
    """Threads of a block of the tiled path: as many as there are columns, up to `TILED_THREADS`."""
    return min(TILED_THREADS, tiles(dim, WARP) * WARP)


def tiles(dim: int, columns: int) -> int:
    """Blocks of `columns` columns across a row."""
    return -(-dim // columns)


def is_per_token(rows: int, groups: int, packed: bool) -> bool:
    """True if every row has its own modulation, whose gradients are written with the row."""
    return not packed and groups == rows > 1


def row_stride(sizes: Sequence[int], strides: Sequence[int]) -> int | None:
    """Elements between the rows of a tensor [..., D], or None where no one number says it and a copy is due."""
    if strides[-1] != 1 and sizes[-1] != 1:
        return None
    common, count = None, 1
    for size, stride in zip(reversed(sizes[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if common is not None and stride != common * count:
            return None
        common = stride if common is None else common
        count *= size
    return sizes[-1] if common is None else common


def is_aligned(pointer: int, stride: int, element_bytes: int) -> bool:
    """True if every row begins at a multiple of 16 bytes."""
    return pointer % VECTOR_BYTES == 0 and stride * element_bytes % VECTOR_BYTES == 0
