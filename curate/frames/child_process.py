"""Child processes for untrusted video: a decoder that crashes or hangs costs its own task and nothing else.

A child is started once and serves one task after the other. When it dies or sends nothing for too long, the
task is tried again in a new child. A task that fails every time is given up with a reason.
"""

import contextlib
import ctypes
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from reelweave.loader.errors import MachineError

Task = TypeVar("Task")
Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1
_STARTS = 3
_STARTUP_S = 300.0  # time for imports on an overloaded machine


@dataclass(frozen=True)
class Quarantined:
    """A task that killed or hung every process that worked on it, and how.

    Attributes:
        reason: How, in words.
        killed: Whether somebody else killed one of them (SIGKILL), as the kernel does where memory runs out.
    """

    reason: str
    killed: bool = False


@dataclass
class Isolated(Generic[Task, Result]):
    """A function that runs in a child process; pickling leaves the child behind.

    Attributes:
        function: Task -> results. It can be pickled and gives the same results each time.
        attempts: Number of children a task may cost before it is given up.
        max_silence_s: Seconds after which a child that sent no result counts as hanging.
    """

    function: Callable[[Task], Iterable[Result]]
    attempts: int = 3
    max_silence_s: float = 6 * 3600.0
    _child: "_Child[Task, Result] | None" = field(default=None, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_child": None}

    def __call__(self, task: Task) -> list[Result] | Quarantined:
        """Return all results of the function for a task.

        Raises:
            Exception: The exception that the function raised in the child.
        """
        deaths: list[_ChildLostError] = []
        for _ in range(self.attempts):
            if self._child is None:
                self._child = self._start_child()
            try:
                return self._child.results(task, self.max_silence_s)
            except _ChildLostError as lost:
                deaths.append(lost)
                self._child = None
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        killed = any(death.killed for death in deaths)
        cause = ", as the system kills where memory runs out" if killed else ""
        return Quarantined(f"its worker process was lost {times}: {deaths[-1]}{cause}; quarantined", killed)

    def _start_child(self) -> "_Child[Task, Result]":
        """Start a child. One that is lost before it received a task does not count against the task.

        Raises:
            MachineError: No child could be started.
        """
        for _ in range(_STARTS):
            try:
                return _Child(self.function)
            except _ChildLostError as error:
                lost = str(error)
            except OSError as error:  # too many files or processes, or no memory
                lost = error.strerror or type(error).__name__
        raise MachineError(
            f"no worker process could be started in {_STARTS} attempts ({lost}); look for lack of memory,"
            " and at what it printed above"
        )

    def close(self) -> None:
        """End the child; the next call starts another."""
        if self._child is not None:
            self._child.stop()
            self._child = None


class _ChildLostError(Exception):
    """Loss of the child, with how it ended."""

    def __init__(self, message: str, killed: bool = False) -> None:
        super().__init__(message)
        self.killed = killed


def _search_path() -> str:
    """Return the folders where this process looks for modules, and those that its children were to be told of."""
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([*inherited, *(path or str(Path.cwd()) for path in sys.path)])


class _Child(Generic[Task, Result]):
    def __init__(self, function: Callable[[Task], Iterable[Result]]) -> None:
        ours, theirs = socket.socketpair()
        # -P: modules are looked for where this process looks, and not in the current folder, which may hold anybody's.
        command = [sys.executable, "-P", "-m", "reelweave.curate.frames.child_process"]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": _search_path()},
        )
        theirs.close()
        self._pipe = Connection(ours.detach())
        self._send(function)
        self._receive(_STARTUP_S)

    def results(self, task: Task, max_silence_s: float) -> list[Result]:
        self._send(task)
        results: list[Result] = []
        while True:
            kind, value = self._receive(max_silence_s)
            if kind == "result":
                results.append(value)
            elif kind == "raised":
                raise value
            else:
                return results

    def stop(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.wait()

    def _send(self, value: Any) -> None:
        try:
            self._pipe.send(value)
        except OSError:
            raise self._lost_error() from None

    def _receive(self, max_silence_s: float) -> tuple[str, Any]:
        try:
            if not self._pipe.poll(max_silence_s):
                self.stop()
                raise _ChildLostError(f"it gave no sign of life for {max_silence_s:.0f} s")
            message: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost_error() from None
        return message

    def _lost_error(self) -> _ChildLostError:
        self._pipe.close()
        status = self._process.wait()
        if status >= 0:
            return _ChildLostError(f"exit status {status}")
        killed = status == -signal.SIGKILL
        return _ChildLostError(f"{signal.Signals(-status).name}, {signal.strsignal(-status)}", killed)


def _serve(handle: int, parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for stops in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stops, signal.SIG_IGN)  # the parent decides when to stop
    if os.getppid() != parent:  # it died before the signal could be asked for
        return
    # A parent that was interrupted is gone, whatever is sent or expected.
    with Connection(handle) as pipe, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        function = pipe.recv()
        gc.freeze()  # imported modules stay; collections need not visit them
        pipe.send(("ready", None))
        while True:
            try:
                task = pipe.recv()
            except EOFError:
                return
            try:
                for result in function(task):
                    pipe.send(("result", result))
            except Exception as error:  # noqa: BLE001 - it is raised again in the parent
                pipe.send(("raised", error))
            else:
                pipe.send(("end", None))
            give_back()


def give_back() -> None:
    """Return freed memory that the C library keeps to the operating system.

    glibc keeps it, since buffers of pictures and motion vectors come and go in all sizes. A worker that
    decodes 1080p for five minutes then holds twice the memory it uses. Frames whose side data was read are
    reference cycles, so they are collected first.
    """
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Any:
    return getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
