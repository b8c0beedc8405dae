"""Predicted share of a copy's bandwidth that a kernel reaches: issue slots, pipes, L1, latency and memory of one SM."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.bench.sass.counts import WARP, RowCost

RATES: Mapping[str, float] = {"fma": 1.0, "alu": 0.5, "special": 0.125}
"""Instructions of a pipe per cycle and scheduler."""
OVERLAP = 4.0
"""Exponent of the norm that joins what proceeds at once. Assumed: 1 would be one after the other, infinity free."""


@dataclass(frozen=True)
class Gpu:
    """Figures of an H200, the copy's bandwidth as measured by others and the rest by its data sheet.

    Attributes:
        copy: bytes a second of a copy of 1 GiB.
        clock: cycles a second.
        latency: seconds until a byte of memory arrives under load.
        launch: seconds of a launch, its first rows and its end, which a long copy does not have.
    """

    copy: float = 4.3e12
    clock: float = 1.98e9
    sms: int = 132
    schedulers: int = 4
    registers: int = 65536
    shared: int = 233472
    threads: int = 2048
    latency: float = 0.7e-6
    launch: float = 2e-6

    @property
    def bytes_a_cycle(self) -> float:
        """Bytes that a copy moves through one SM in a cycle."""
        return self.copy / self.sms / self.clock

    def resident(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Return the blocks that one SM holds.

        Registers go in units of 256 a warp, and a warp's are those of one scheduler. A block has 1.5 KB of shared
        memory beside its own.
        """
        warps = self.registers // self.schedulers // (-(-registers * WARP // 256) * 256) * self.schedulers
        by_registers = warps // (threads // WARP)
        return min(by_registers, self.shared // (shared_bytes + 1536), self.threads // threads, 32)


@dataclass(frozen=True)
class Kernel:
    """One launch over rows.

    Attributes:
        cost: what a row costs a warp.
        threads: threads of a team, which works on a row.
        resident: blocks that an SM holds at once.
        row_bytes: bytes of a row that must move.
        ahead: bytes of rows that a team asks for ahead.
        passes: times that rows are walked by blocks side by side (tiles of columns).
        cluster: blocks that share a row.
        teams: teams of a block.
    """

    cost: RowCost
    threads: int
    resident: int
    row_bytes: float
    ahead: float
    passes: int = 1
    cluster: int = 1
    teams: int = 1


@dataclass(frozen=True)
class Shares:
    """What a kernel uses of each limit, as parts of the time in which a copy moves the same bytes."""

    issue: float
    pipe: float
    l1: float
    chain: float
    flight: float

    @property
    def time(self) -> float:
        """Time, as a multiple of the copy's."""
        limits = (1.0, self.issue, self.pipe, self.l1, self.chain, self.flight)
        return sum(limit**OVERLAP for limit in limits) ** (1 / OVERLAP)


def shares(kernel: Kernel, gpu: Gpu) -> Shares:
    """Return what a kernel uses of each limit while rows stream through it."""
    cycles = kernel.row_bytes / kernel.cluster / gpu.bytes_a_cycle
    warps = kernel.threads / WARP * kernel.passes
    busiest = max(kernel.cost.pipes.get(pipe, 0) / rate for pipe, rate in RATES.items())
    teams = kernel.resident * kernel.teams
    in_flight = teams * kernel.ahead
    return Shares(
        issue=kernel.cost.issued * warps / gpu.schedulers / cycles,
        pipe=busiest * warps / gpu.schedulers / cycles,
        l1=kernel.cost.wavefronts * warps / cycles,
        chain=kernel.cost.chain * kernel.passes / teams / cycles,
        flight=gpu.latency * gpu.copy / gpu.sms / in_flight if in_flight else 0.0,
    )


def share_of_copy(
    kernels: list[Kernel], rows: int, gpu: Gpu, wanted_bytes: float, partial_bytes: float = 0
) -> float:
    """Return the predicted share of a copy's bandwidth.

    Args:
        kernels: launches over all rows.
        rows: rows of the whole launch.
        gpu: the device.
        wanted_bytes: bytes that one pass must move.
        partial_bytes: bytes that a block or cluster leaves to a second stage, written and read at the speed of a copy.
    """
    seconds = 0.0
    for kernel in kernels:
        blocks = gpu.sms * kernel.resident // kernel.cluster
        walked = -(-rows // blocks) * blocks  # a block has whole rows, so that some have one more
        seconds += walked * kernel.row_bytes / gpu.copy * shares(kernel, gpu).time + gpu.launch
    if partial_bytes:
        blocks = gpu.sms * kernels[-1].resident // kernels[-1].cluster
        seconds += gpu.launch + 2 * partial_bytes * blocks / gpu.copy
    return wanted_bytes / gpu.copy / seconds
