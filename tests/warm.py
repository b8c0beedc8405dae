"""Commands in processes of their own, forked from one that has imported everything: a real process in milliseconds.

Importing curation takes 1.7 s of a processor; hundreds of runs that are killed half-way would do little else.
"""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

_SERVE = "from tests.warm import serve; serve()"
_PRELOADED = (
    "reelweave.pipelines.cli",
    "reelweave.pipelines.commands.data.curate",
    "reelweave.pipelines.commands.look.report",
    "reelweave.pipelines.commands.look.verify",
    "reelweave.pipelines.report.page",
    # PyArrow's tables import it where it is installed: 0.2 of the 0.26 s of a command that finds nothing to do.
    "pandas",
    "pyarrow.dataset",
)


class Warm:
    """Starts commands; each runs in a session of its own, so that it can be killed with all its children.

    Args:
        env: Added to the environment of the process they are forked from.
        prepare: Python statements that this process runs before it imports anything.
    """

    def __init__(self, env: Mapping[str, str] | None = None, prepare: str = "") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{prepare}\n{_SERVE}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.folder = tempfile.TemporaryDirectory(prefix="reelweave-warm-")
        self._started = count(1)
        self._first = ""

    def prepared(self, statements: str) -> Self:
        """Return the same process, whose commands run Python statements first."""
        other = copy(self)
        other._first = statements
        return other

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, killed_behind: str = ""
    ) -> "Command":
        """Start ``reelweave`` with these arguments.

        Args:
            env: Added to its environment.
            killed_behind: Pattern of a path in a storage: behind its first write to such a path the command kills
                itself and its children. So no result depends on when a kill from outside would strike.
        """
        errors = Path(self.folder.name) / f"{next(self._started)}.err"
        asked = {"run": arguments, "errors": str(errors), "env": dict(env or {}), "killed": killed_behind}
        pid = self._ask(asked | {"first": self._first})
        return Command(self, pid, errors)

    def ask(self, pid: int, wait: bool) -> int | None:
        """Return the status of a command as `subprocess` tells it; None while it runs and nobody waits."""
        status = self._ask({"pid": pid, "wait": wait})
        return None if status == _RUNS else status

    def _ask(self, question: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        self.folder.cleanup()


class Command:
    """A started command.

    Attributes:
        pid: of it, and of its session.
        returncode: None until it is known to have ended.
    """

    def __init__(self, warm: Warm, pid: int, errors: Path) -> None:
        self._warm, self._errors = warm, errors
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its status, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._warm.ask(self.pid, wait=False)
        return self.returncode

    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self.poll() is not None

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its status and what it wrote to its standard error."""
        if self.returncode is None:
            self.returncode = self._warm.ask(self.pid, wait=True)
        assert self.returncode is not None
        return self.returncode, self._errors.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole session, if it still runs."""
        if self.poll() is None:
            os.killpg(self.pid, number)

    def kill(self) -> bool:
        """Kill its whole session; whether it still ran."""
        ran = self.poll() is None
        self.signal(signal.SIGKILL)
        self.ended()
        return ran


_RUNS = 1000  # no status of a process


def serve() -> None:
    """Answer a `Warm` until it closes its pipe."""
    for module in _PRELOADED:
        importlib.import_module(module)
    for line in sys.stdin:
        question = json.loads(line)
        if "run" in question:
            pid = os.fork()
            if pid == 0:
                _run(**question)
            answer = pid
        else:
            pid, status = os.waitpid(question["pid"], 0 if question["wait"] else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else _RUNS
        print(answer, flush=True)


def _run(run: Sequence[str], errors: str, env: Mapping[str, str], killed: str, first: str) -> None:
    """Run a command in this forked process, which ends with it."""
    status = 70
    try:
        os.setsid()
        for handle, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, os.devnull, os.O_WRONLY),
            (2, errors, os.O_WRONLY | os.O_CREAT),
        ):
            opened = os.open(path, flags, 0o600)
            os.dup2(opened, handle)
        os.environ.update(env)
        exec(first, {})
        if killed:
            die_behind(killed)
        from reelweave.pipelines.cli import main

        status = main(run)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        status = 1
    finally:
        sys.stderr.flush()
        os._exit(status)


def die_behind(pattern: str) -> None:
    """Kill this session behind its first write to a path that the pattern matches."""
    from reelweave.loader.storage.local import LocalStorage
    from reelweave.loader.storage.s3.storage import S3Storage

    def dying(write: Callable[..., object]) -> Callable[..., object]:
        def written(storage: object, path: str, *arguments: object) -> object:
            done = write(storage, path, *arguments)
            if re.search(pattern, path):
                os.killpg(0, signal.SIGKILL)
            return done

        return written

    for kind in (LocalStorage, S3Storage):
        for name in ("write", "write_file", "write_chunks", "create", "create_file", "replace"):
            setattr(kind, name, dying(getattr(kind, name)))
