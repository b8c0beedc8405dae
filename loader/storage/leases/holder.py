"""Holder of a lease: a description for users, and detection of dead holders."""

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from uuid import uuid4

from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.names import LEASE

MAX_BYTES = 4096
_MAX_CHARS = 200


@dataclass(frozen=True)
class LeaseHolder:
    """Process that writes to an output.

    Attributes:
        id: random id of this lease.
        host: name of the machine.
        pid: process id on that machine.
        user: user name or number.
        command: command without its arguments, which may hold secrets.
        since: start of the lease, ISO 8601, by the holder's clock.
        process: identity of the process among all that ever ran; empty if the system does not provide one.
        lasts_s: seconds without renewal after which others may take over; 0 if the system ends the lease.
        beat: number of renewals, so that each one changes the content.
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
        except (KeyError, OSError):  # containers may lack a name for the user
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
        """Return the holder that a lease names; None if there is none or the content is damaged."""
        try:
            values = json.loads(data)
            fields = {name: kind(values[name]) for name, kind in _FIELDS.items()}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        shown = {
            name: _printable(value) if isinstance(value, str) else value for name, value in fields.items()
        }
        return cls(**shown)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        """Return the content of the lease."""
        return json.dumps(asdict(self)).encode()

    def renew(self) -> Self:
        """Return the same holder after one more renewal."""
        return replace(self, beat=self.beat + 1)

    @property
    def is_gone(self) -> bool:
        """True if the process has certainly ended: it ran on this machine and boot, and is gone."""
        return self.runs is False

    @property
    def runs(self) -> bool | None:
        """True if the process runs; None where this machine cannot tell, as of processes of others."""
        holder_host, _, _ = self.process.rpartition(" ")
        this_host, _, _ = _identity(os.getpid()).rpartition(" ")
        if not holder_host or holder_host != this_host:
            return None
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # this process or a later one with its number lives under another user
        now = _identity(self.pid)
        return now == self.process if now else None

    def __str__(self) -> str:
        return f"{self.user} on {self.host} (process {self.pid}, {self.command}, since {self.since})"


def read_holder(storage: Storage) -> LeaseHolder | None:
    """Return the holder that a storage's lease names; None if there is no lease or it is damaged."""
    try:
        return LeaseHolder.from_bytes(storage.read(LEASE, 0, MAX_BYTES))
    except FileNotFoundError:
        return None


def lease_held_error(root: str, holder: LeaseHolder | None) -> RunError:
    """Return the error for a process that finds the lease held."""
    who = "another process, which did not say who it is" if holder is None else str(holder)
    return RunError(
        f"{root} is being written to by {who}; wait until that has ended, or stop it, then run the same command"
        " again; or write to another place"
    )


_NUMBERS: dict[str, type] = {"pid": int, "lasts_s": float, "beat": int}
_FIELDS = {field.name: _NUMBERS.get(field.name, str) for field in fields(LeaseHolder)}


def _printable(text: str) -> str:
    """Return text of an untrusted lease for printing."""
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_CHARS])


def _identity(pid: int) -> str:
    """Return the boot, the pid namespace and the start time of a process; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        table = Path("/proc/self/ns/pid").readlink()
        state, *_, began = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    # A zombie keeps its pid until its parent reaps it.
    return f"{boot} {table} {'ended' if state in ('Z', 'X') else began}"
