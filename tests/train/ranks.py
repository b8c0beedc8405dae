"""Worlds of rank processes, forked from one process that has imported torch: eight of them start in a second.

with Ranks() as ranks:
    ended = ranks.run(train, 4, str(out))       # train(str(out)) on four ranks, as under torchrun
    assert ended.codes == [0] * 4, ended.errors

What a module names in IMPORTED_FIRST is imported once, before ranks are forked, instead of by every rank.
"""

import gc
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

PRELOADED = (
    "train.loop.trainer",
    "loader.stream.video_stream",
    "train.cascade.training.cascades",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "pandas",
)
DEADLINE_S = 600.0  # of what hangs: on a machine with other work a world may take minutes
PORT_BELOW = 32_000  # ephemeral ports begin above


@dataclass(frozen=True)
class Ended:
    """How a world ended, rank by rank.

    Attributes:
        codes: exit codes, negative for signals.
        errors: what went to stderr.
    """

    codes: list[int]
    errors: list[str]


class Ranks:
    """Starts worlds. When a rank fails, the others get some time to end, as a launcher would have it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.train.ranks"],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def run(
        self,
        function: Callable[..., object],
        size: int,
        *arguments: Any,
        grace_s: float = 120.0,
        deadline_s: float = DEADLINE_S,
    ) -> Ended:
        """Calls a function of a module, with JSON values, on every rank."""
        request = {
            "module": function.__module__,
            "function": function.__name__,
            "size": size,
            "arguments": arguments,
            "grace_s": grace_s,
            "deadline_s": deadline_s,
        }
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return Ended(**json.loads(self._server.stdout.readline()))


def serve() -> None:
    """Runs the requests of stdin, one after the other."""
    for module in PRELOADED:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    _share_event_loops()
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)
    os._exit(0)  # nothing is left to tidy, which takes seconds


def _share_event_loops() -> None:
    """Let all Gloo groups of a rank share one device, whose thread wakes 100 times a second.

    PyTorch makes a device for each group; some hundred groups of idle worlds took a tenth of all processor time.
    """
    import torch.distributed.distributed_c10d as c10d

    @cache
    def device() -> Any:
        return c10d.ProcessGroupGloo.create_default_device()

    class SharedLoop(c10d.ProcessGroupGloo):
        def __init__(self, store: Any, rank: int, size: int, timeout: Any, **_: Any) -> None:
            options = self._Options()
            options._timeout = timeout
            options._devices = [device()]
            super().__init__(store, rank, size, options)

    c10d.ProcessGroupGloo = SharedLoop


def own_event_loops() -> None:
    """Give each Gloo group of this rank a device of its own again, as PyTorch does."""
    import torch.distributed.distributed_c10d as c10d

    c10d.ProcessGroupGloo = c10d.ProcessGroupGloo.__base__


def _run(
    module: str, function: str, size: int, arguments: list[Any], grace_s: float, deadline_s: float
) -> dict[str, Any]:
    found = importlib.import_module(module)
    for name in getattr(found, "IMPORTED_FIRST", ()):
        importlib.import_module(name)
    called = getattr(found, function)
    gc.freeze()  # what is imported stays: no rank needs to visit it
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / str(rank) for rank in range(size)]
        pids = [_fork(called, arguments, common | {"RANK": str(r)}, said[r]) for r in range(size)]
        codes = _wait(pids, grace_s, deadline_s)
        return {"codes": codes, "errors": [path.read_text(errors="replace") for path in said]}


def _fork(
    called: Callable[..., object], arguments: list[Any], environment: dict[str, str], errors: Path
) -> int:
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.environ.update(environment)
        with errors.open("w") as file:
            os.dup2(file.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(2, 1)
        code = int(called(*arguments) or 0)
    except BaseException:  # noqa: BLE001 - a rank is a program of its own
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(pids: list[int], grace_s: float, deadline_s: float) -> list[int]:
    """Exit codes; ends what outlives the deadline, which a failure brings near."""
    codes: dict[int, int] = {}
    deadline = time.monotonic() + deadline_s
    while len(codes) < len(pids):
        for pid in (pid for pid in pids if pid not in codes):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
                if codes[pid]:
                    deadline = min(deadline, time.monotonic() + grace_s)
            elif time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[pid] for pid in pids]


def _free_port() -> int:
    while True:
        port = random.randrange(20_000, PORT_BELOW)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


if __name__ == "__main__":
    serve()
