"""Processors and memory that this process may use, as its affinity and the limits of its control groups say."""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_NO_LIMIT = 1 << 60
"""The first version says a number near 2^63 where there is no limit."""


def processors(root: Path = Path("/")) -> int:
    """Return the number of processors of this process, at least 1.

    A container of half a processor on a machine of 64 shows 64 to `os.cpu_count`.

    Args:
        root: Folder below which ``proc`` and ``sys`` are read.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(share) for share in _quotas(root))]))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory that the control groups of this process grant, or None without a limit.

    Args:
        root: Folder below which ``proc`` and ``sys`` are read.
    """
    sizes = (
        _number(group / ("memory.limit_in_bytes" if first else "memory.max"))
        for group, first in _groups(root, "memory")
    )
    return min((size for size in sizes if size is not None and size < _NO_LIMIT), default=None)


def is_low_on_memory(root: Path = Path("/")) -> bool:
    """Return whether less than a twentieth of this machine's memory is available; False where it is not known.

    Args:
        root: Folder below which ``proc`` is read.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return False
    found = {line.partition(":")[0]: line.split()[1] for line in lines if len(line.split()) > 1}
    try:
        return 20 * int(found["MemAvailable"]) < int(found["MemTotal"])
    except (KeyError, ValueError):
        return False


def _quotas(root: Path) -> Iterator[float]:
    """Yield the processors that each control group above this process grants; none where there is no limit."""
    for group, first in _groups(root, "cpu"):
        share = _quota_v1(group) if first else _quota_v2(group)
        if share is not None:
            yield share


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group above this process, and whether it is of the first version."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container the path may be that on the host, which is not below its own mount.
        inner = PurePosixPath(path.lstrip("/"))
        for group in {mount / each for each in (inner, *inner.parents, PurePosixPath("."))}:
            yield group, bool(controllers)


def _number(path: Path) -> int | None:
    """Return the number in a file, or None where there is none, such as ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _quota_v2(group: Path) -> float | None:
    """Return the processors of ``cpu.max``: quota and period in microseconds, or ``max``."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(group: Path) -> float | None:
    try:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
