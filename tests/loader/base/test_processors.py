"""The number of processors, and memory, is what affinity and control groups grant, not what the machine has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reelweave.loader.base.processors import memory_limit, processors

OWN = os.sched_getaffinity(0)


def machine(folder: Path, cgroup: str, **files: str) -> Path:
    """A folder with the files of a machine's control groups."""
    for name, text in {"proc/self/cgroup": cgroup, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture(autouse=True)
def sixty_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 64 processors, all of which this process may use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("max 100000", 64), ("100000 100000", 1), ("50000 100000", 1), ("250000 100000", 3)],
)
def test_a_quota_of_the_second_version_counts(tmp_path: Path, limit: str, expected: int) -> None:
    root = machine(tmp_path, "0::/\n", **{"sys/fs/cgroup/cpu.max": limit + "\n"})
    assert processors(root) == expected


def test_the_least_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/batch/job/cpu.max": "max 100000",
        "sys/fs/cgroup/batch/cpu.max": "400000 100000",
        "sys/fs/cgroup/cpu.max": "1600000 100000",
    }
    assert processors(machine(tmp_path, "0::/batch/job\n", **files)) == 4


def test_a_container_whose_path_is_the_hosts_reads_its_own_mount(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/../../kubepods/pod1\n", **{"sys/fs/cgroup/cpu.max": "200000 100000"})
    assert processors(root) == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", 64), ("200000", 2)])
def test_a_quota_of_the_first_version_counts(tmp_path: Path, quota: str, expected: int) -> None:
    files = {
        "sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/docker/cpu.cfs_period_us": "100000",
    }
    root = machine(tmp_path, "5:memory:/docker\n4:cpu,cpuacct:/docker\n", **files)
    assert processors(root) == expected


@pytest.mark.parametrize("text", ["", "nonsense", "1 0", "1"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, text: str) -> None:
    assert processors(machine(tmp_path, "0::/\n", **{"sys/fs/cgroup/cpu.max": text})) == 64
    assert processors(tmp_path / "nothing") == 64


def test_a_process_bound_to_one_processor_has_one() -> None:
    one = min(OWN)
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\n"
        "from reelweave.loader.base.processors import processors\nprint(processors())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


def test_the_least_memory_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/slurm/job/memory.max": "max\n",
        "sys/fs/cgroup/slurm/memory.max": "8000000000\n",
        "sys/fs/cgroup/memory.max": "64000000000\n",
    }
    assert memory_limit(machine(tmp_path, "0::/slurm/job\n", **files)) == 8_000_000_000


@pytest.mark.parametrize(
    ("limit", "expected"), [("9223372036854771712", None), ("4000000000", 4_000_000_000)]
)
def test_memory_of_the_first_version_counts(tmp_path: Path, limit: str, expected: int | None) -> None:
    files = {"sys/fs/cgroup/memory/docker/memory.limit_in_bytes": limit + "\n"}
    assert memory_limit(machine(tmp_path, "4:cpu,cpuacct:/docker\n5:memory:/docker\n", **files)) == expected
    assert memory_limit(tmp_path / "nothing") is None
