"""Worlds of rank processes, forked from one process that has imported torch: eight of them start in a second.

with Ranks() as ranks:
    ended = ranks.run(train, 4, str(out))       # train(str(out)) on four ranks, as under torchrun
    assert ended.codes == [0] * 4, ended.errors

What a module names in IMPORTED_FIRST is imported once, before ranks are forked, instead of by every rank.
"""

import fcntl
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TextIO

from tests.ports import reserved_port

PRELOADED = (
    "reelweave.train.loop.trainer",
    "reelweave.loader.stream.video_stream",
    "reelweave.train.cascade.training.cascades",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "pandas",
    "tests.strict_group",
)
STRICT = os.environ.get("STRICT_GROUP") == "1"
"""Whether the process groups of all worlds are those of `tests.strict_group`."""
DEADLINE_S = 600.0  # of what hangs: on a machine with other work a world may take minutes


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
    """Starts worlds. When a rank fails, the others get some time to end, as a launcher would have it.

    Args:
        shared: Folder of a server that other processes share, each with a world at a time; it is started by the first
            of them and ends with the last. None has a server of its own.
        environment: Variables of the server beside those of this process.

    Attributes:
        folder: Folder of the server.
    """

    def __init__(self, shared: Path | None = None, environment: dict[str, str] | None = None) -> None:
        self._own = None if shared else tempfile.TemporaryDirectory(prefix="reelweave-ranks-")
        self.folder = shared or Path(self._own.name)
        self.folder.mkdir(exist_ok=True)
        address = self.folder / "socket"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _joined(address)
            if connection is None:
                self._server = _started(address, environment or {})
                connection = _joined(address)
        assert connection is not None
        self._connection, self._answers = connection, connection.makefile()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._connection.close()
        if self._own is not None:
            self._server.wait()
            self._own.cleanup()

    def run(
        self,
        function: Callable[..., object],
        size: int,
        *arguments: Any,
        grace_s: float = 120.0,
        deadline_s: float = DEADLINE_S,
        strict: bool = STRICT,
    ) -> Ended:
        """Calls a function of a module, with JSON values, on every rank; `strict` ones have `tests.strict_group`."""
        request = {
            "strict": strict,
            "module": function.__module__,
            "function": function.__name__,
            "size": size,
            "arguments": arguments,
            "grace_s": grace_s,
            "deadline_s": deadline_s,
        }
        self._connection.sendall(f"{json.dumps(request)}\n".encode())
        answer = self._answers.readline()
        assert answer, "the process of this world was killed"
        return Ended(**json.loads(answer))


def _joined(address: Path) -> socket.socket | None:
    """A connection to the server that listens there, if it does and will go on."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(address))
        if connection.recv(1):
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _started(address: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    """A server that listens there."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.train.ranks", str(address)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline(), "the server of ranks did not start"
    return server


def serve(address: str) -> None:
    """Runs the requests of all connections, each in a process of its own, until none is left."""
    for module in PRELOADED:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    _share_event_loops()
    # Else the first process group of every rank looks for Gloo in all installed packages, for 25 ms.
    torch.distributed.Backend._ensure_backend_registered("gloo")
    Path(address).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as ready:
        listening.bind(address)
        listening.listen()
        ready.register(listening, selectors.EVENT_READ)
        print("listens", flush=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        worlds: dict[int, socket.socket] = {}
        while True:
            for key, _ in ready.select(timeout=1):
                if key.fileobj is listening:
                    connection, _ = listening.accept()
                    with suppress(OSError):  # who asked may be gone
                        connection.sendall(b"!")
                    ready.register(connection, selectors.EVENT_READ, connection.makefile())
                elif request := _read_line(key.data):
                    worlds[_answer(key.fileobj, json.loads(request))] = key.fileobj
                else:
                    ready.unregister(key.fileobj)
                    if len(ready.get_map()) == 1:
                        os._exit(0)  # nothing is left to tidy, which takes seconds
            _reap(worlds)


def _read_line(lines: TextIO) -> str:
    """Return the next request; "" where there is none, or where who asks was killed."""
    try:
        return lines.readline()
    except OSError:
        return ""


def _reap(worlds: dict[int, socket.socket]) -> None:
    """Forget the worlds that have ended; who waits for one that was killed learns it by the connection's end."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            connection = worlds.pop(ended[0], None)
            if connection and ended[1]:
                with suppress(OSError):  # who waited may be gone
                    connection.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket, request: dict[str, Any]) -> int:
    """Run a world in a process of its own, which sends how it ended; return that process."""
    found = importlib.import_module(request["module"])
    for name in getattr(found, "IMPORTED_FIRST", ()):
        importlib.import_module(name)
    gc.freeze()  # what is imported stays: no rank needs to visit it
    if world := os.fork():
        return world
    try:
        connection.sendall(f"{json.dumps(_run(found, request))}\n".encode())
    finally:
        os._exit(0)


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


def _run(found: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    called, size = getattr(found, request["function"]), request["size"]
    with tempfile.TemporaryDirectory() as folder, reserved_port() as port:
        common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        said = [Path(folder) / str(rank) for rank in range(size)]
        pids = [
            _fork(called, request["arguments"], common | {"RANK": str(r)}, said[r], request["strict"])
            for r in range(size)
        ]
        codes = _wait(pids, request["grace_s"], request["deadline_s"])
        return {"codes": codes, "errors": [path.read_text(errors="replace") for path in said]}


def _fork(
    called: Callable[..., object],
    arguments: list[Any],
    environment: dict[str, str],
    errors: Path,
    strict: bool,
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
        _renew_thread_pool()
        if strict:
            importlib.import_module("tests.strict_group").use()
        code = int(called(*arguments) or 0)
    except BaseException:  # noqa: BLE001 - a rank is a program of its own
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _renew_thread_pool() -> None:
    """Have PyTorch replace the thread pool that a fork left without threads.

    Its next user does that, without a lock. In a first backward these are several threads of autograd at once, of which
    one may find none: "Invalid thread pool!", and the rank aborts.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(torch.get_num_threads())


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


if __name__ == "__main__":
    serve(sys.argv[1])
