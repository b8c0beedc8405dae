"""Who holds a lease, as the lease says it: for people, and to tell a dead process from a living one."""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from uuid import uuid4

from loader.errors import RunError
from loader.storage.base import Storage
from loader.storage.names import LEASE

MAX_BYTES = 4096
_MAX_CHARS = 200


@dataclass(frozen=True)
class LeaseHolder:
    """The process that writes to an output.

    Attributes:
        id: random, of this one lease.
        host: name of the machine.
        pid: process id there.
        user: name or number.
        command: what it runs, without its arguments, which may hold secrets.
        since: ISO 8601 time at which it began, by its own clock.
        process: tells the process from every other one that ever ran; empty where the system does not say.
        lasts_s: seconds without renewal after which others may take over; 0 where the system ends the lease.
        beat: number of renewals, so that each one is another content.
    """

    id: str
    host: str
    pid: int
    user: str
    command: str
    since: str
    process: str = ""
    lasts_s: float = 0.0
    beat: int = 0

    @classmethod
    def here(cls, command: str) -> Self:
        """Return this process as the holder of a new lease."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may have no name for its user
            user = str(os.getuid())
        return cls(
            id=uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            user=user,
            command=command,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            process=_identity(os.getpid()),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return the holder that a lease names; None where it names none, or is damaged."""
        try:
            values = json.loads(data)
            known = {name: kind(values[name]) for name, kind in _FIELDS.items()}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        shown = {name: _shown(value) if isinstance(value, str) else value for name, value in known.items()}
        return cls(**shown)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        """Return the lease's content."""
        return json.dumps(asdict(self)).encode()

    def renewed(self) -> Self:
        """Return the same holder, one beat later."""
        return replace(self, beat=self.beat + 1)

    @property
    def is_gone(self) -> bool:
        """Whether the process certainly has ended: it ran where this one runs, and is not there any more."""
        place, _, _ = self.process.rpartition(" ")
        here, _, _ = _identity(os.getpid()).rpartition(" ")
        if not place or place != here:
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # it lives, or another one with its number, and nobody may look at it
        now = _identity(self.pid)
        return now != "" and now != self.process

    def __str__(self) -> str:
        return f"{self.user} on {self.host} (process {self.pid}, {self.command}, since {self.since})"


def read_holder(storage: Storage) -> LeaseHolder | None:
    """Return the holder that the lease of a place names; None where there is no lease, or a damaged one."""
    try:
        return LeaseHolder.from_bytes(storage.read(LEASE, 0, MAX_BYTES))
    except FileNotFoundError:
        return None


def held(root: str, holder: LeaseHolder | None) -> RunError:
    """Return what whoever comes too late is told."""
    who = "another process, which did not say who it is" if holder is None else str(holder)
    return RunError(
        f"{root} is being written to by {who}; wait until that has ended, or stop it, then run the same command"
        " again; or write to another place"
    )


_NUMBERS: dict[str, type] = {"pid": int, "lasts_s": float, "beat": int}
_FIELDS = {field.name: _NUMBERS.get(field.name, str) for field in fields(LeaseHolder)}


def _shown(text: str) -> str:
    """The text as it may be printed: a lease is written by others."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_CHARS])


def _identity(pid: int) -> str:
    """This start of the machine, its table of processes, and when the process began; "" where that is not told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        table = Path("/proc/self/ns/pid").readlink()
        state, *_, began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    # A dead process whose parent has not asked for it yet still has its number.
    return f"{boot} {table} {'ended' if state in ('Z', 'X') else began}"
