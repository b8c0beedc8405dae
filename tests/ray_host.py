"""The Ray of the tests, started as a command starts it: by our runner, in a process of its own.

python -m tests.ray_host        # prints the address and the number of results, then ends Ray when its input ends

Its first start times out, as Ray's own processes do on a busy machine; the runner starts it again. Until then the
process is bound to one processor, and it prints how many Ray was told, and how many workers it had before any task.
"""

import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

from reelweave.curate.run.runners.pipeline import Stage, run_on_ray, startable

RESULTS = 3


class Same:
    """Stage with a worker of its own that changes nothing."""

    def __call__(self, rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return rows


def serve() -> None:
    """Run a pipeline on a Ray of two processors; print the address; keep Ray until standard input ends."""
    import ray

    start, allowed = ray.init, os.sched_getaffinity(0)
    told: list[int] = []

    def times_out(**options: Any) -> None:
        told.append(options["num_cpus"])
        os.sched_setaffinity(0, allowed)
        ray.init = lambda **options: start(**options | {"num_cpus": 2})
        raise Exception("The current node timed out during startup. The GCS may have become overloaded.")

    ray.init = times_out
    os.sched_setaffinity(0, {min(allowed)})
    startable("ray")
    idle = sum(_is_worker(pid) for raylet in _children(os.getpid()) for pid in _children(raylet))
    stages = [Stage("same", Same(), keeps=True, cpus=0.5)]
    results = list(run_on_ray([{"n": n} for n in range(RESULTS)], stages))
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    open_to = stat.S_IMODE(session.parents[1].stat().st_mode)
    print(ray.get_runtime_context().gcs_address, len(results), *told, idle, open_to, flush=True)
    sys.stdin.read()
    ray.shutdown()


def _children(pid: int) -> list[int]:
    return [
        int(word) for path in Path(f"/proc/{pid}/task").glob("*/children") for word in _read(path).split()
    ]


def _is_worker(pid: int) -> bool:
    command = _read(Path(f"/proc/{pid}/cmdline"))
    return b"default_worker.py" in command or command.startswith(b"ray::IDLE")


def _read(path: Path) -> bytes:
    with suppress(OSError):  # it has ended
        return path.read_bytes()
    return b""


class Started(NamedTuple):
    """What a host printed.

    Attributes:
        address: address of Ray.
        results: number of results.
        processors: processors of the first start.
        idle_workers: workers before any task.
        folder_mode: who may enter the folder that holds its own.
        errors: standard error.
    """

    address: str
    results: int
    processors: int
    idle_workers: int
    folder_mode: int
    errors: str


class RayHost:
    """A host; it ends with the ``with`` statement.

    Attributes:
        ended: Its exit status and all that it wrote on standard error, once it has ended.
    """

    def __init__(self, errors: Path) -> None:
        self.ended: tuple[int, str] | None = None
        self._errors = errors
        with errors.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.ray_host"],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            )

    def started(self) -> Started:
        """Wait until Ray runs.

        Raises:
            RuntimeError: It did not start.
        """
        assert self._process.stdout is not None
        line, errors = self._process.stdout.readline(), self._errors.read_text()
        if not line:
            raise RuntimeError(f"Ray did not start: {errors}")
        address, *counts = line.split()
        return Started(address, *map(int, counts), errors=errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self.ended = self._process.returncode, self._errors.read_text()


if __name__ == "__main__":
    serve()
