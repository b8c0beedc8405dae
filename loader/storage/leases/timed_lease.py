"""Lease of a storage without locks: an object that its holder renews, changed only by conditional writes.

Clocks of two machines are never compared. The holder counts time from its last renewal; a waiting process counts how
long the lease stays unchanged. Each uses its own clock.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from reelweave.loader.errors import RunError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.leases.holder import MAX_BYTES, LeaseHolder, lease_held_error
from reelweave.loader.storage.names import LEASE

_BEATS = 4  # renewals per duration of the lease
_LOOKS = 60
LONGEST_S = 3600.0
"""Longest lease in seconds that anybody waits for, since it may be damaged."""
_NEVER = "reelweave-no-such-version"

_log = logging.getLogger(__name__)


def elapsed_s() -> float:
    """Return seconds of a clock that cannot be set and that continues while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class TimedLease:
    """Lease of a storage with conditional `create` and `replace`, such as an S3 prefix.

    Attributes:
        storage: leased storage.
        holder: this process.
        lasts_s: seconds without renewal after which others may take over.
        clock: function that returns elapsed seconds.
    """

    storage: Storage
    holder: LeaseHolder
    lasts_s: float
    clock: Callable[[], float] = elapsed_s
    _version: str = field(default="", init=False)
    _renewed_at: float = field(default=0.0, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.holder = replace(self.holder, lasts_s=self.lasts_s)

    def acquire(self) -> None:
        """Create the object, or take it over, see `reelweave.loader.storage.leases.lease.Lease`."""
        while not self._taken():
            pass
        self._check_conditions()
        self._thread = threading.Thread(target=self._renew_on, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Remove the object while it is certainly ours, see `reelweave.loader.storage.leases.lease.Lease`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        try:
            # Other processes do not take over a lease renewed just now.
            if self.renew() and self.clock() - self._renewed_at < self.lasts_s / 2:
                self.storage.delete(LEASE)
        except RunError as error:
            _log.warning("the lease of %s runs out by itself: %s", self.storage.root, error)

    def renew(self) -> bool:
        """Write a renewal; return False if another process has taken over."""
        while self._version:
            began, holder = self.clock(), self.holder.renew()
            if self.storage.replace(LEASE, holder.to_bytes(), self._version):
                return self._noted(holder, began)
            # The lease may hold our renewal, if the server failed before it returned the version.
            current = self._look()
            ours = current is not None and current[0] is not None and current[0].id == self.holder.id
            self._version = current[1] if current is not None and ours and current[1] != self._version else ""
        return False

    def _taken(self) -> bool:
        """Try once to take the lease; return False if another process was faster.

        Raises:
            RunError: another process holds the lease.
        """
        began = self.clock()
        if self.storage.create(LEASE, self.holder.to_bytes()):
            return self._noted(self.holder, began)
        current = self._look()
        if current is None:
            return False
        other, version = current
        if other is None or not other.is_gone:
            lasts_s = max(self.lasts_s, min(other.lasts_s, LONGEST_S) if other else 0)
            _log.warning("%s", _waiting(self.storage.root, other, lasts_s))
            deadline = self.clock() + lasts_s
            while self.clock() < deadline:
                time.sleep(lasts_s / _LOOKS)
                now = self._look()
                if now is None:
                    return False
                if now[1] != version:
                    raise lease_held_error(self.storage.root, now[0])
        began = self.clock()
        # The replacement fails if the lease was renewed, or taken by another waiting process.
        return self.storage.replace(LEASE, self.holder.to_bytes(), version) and self._noted(
            self.holder, began
        )

    def _look(self) -> tuple[LeaseHolder | None, str] | None:
        """Return the holder and version of the lease; None if there is none."""
        info = self.storage.stat(LEASE)
        if info is None:
            return None
        try:
            return LeaseHolder.from_bytes(self.storage.read(LEASE, 0, MAX_BYTES)), info.version
        except FileNotFoundError:
            return None

    def _noted(self, holder: LeaseHolder, began: float) -> bool:
        """Store the version of the object just written; return False if it was replaced before the version was read."""
        info = self.storage.stat(LEASE)
        # Content that is still there after the version was read had that version.
        mine = info is not None and self._reads(holder.to_bytes())
        self._version = info.version if info is not None and mine else ""
        self.holder, self._renewed_at = holder, began
        return mine

    def _reads(self, content: bytes) -> bool:
        try:
            return self.storage.read(LEASE, 0, MAX_BYTES) == content
        except FileNotFoundError:
            return False

    def _check_conditions(self) -> None:
        """Check that the server supports conditional writes.

        Raises:
            RunError: the server ignores conditions.
        """
        content = self.holder.to_bytes()
        if self.storage.create(LEASE, content) or self.storage.replace(LEASE, content, _NEVER):
            self.storage.delete(LEASE)
            raise RunError(
                f"{self.storage.root}: the server ignores the conditions of a PUT (If-None-Match, If-Match), so two"
                " runs at once could damage a dataset; use one that has conditional writes, as AWS, MinIO and Ceph"
                " have in their present versions"
            )

    def _renew_on(self) -> None:
        while not self._stop.wait(self.lasts_s / _BEATS):
            try:
                if not self.renew():
                    return  # the fence of the next write reports the loss
            except RunError as error:
                _log.warning("the lease of %s was not renewed: %s", self.storage.root, error)


def _waiting(root: str, holder: LeaseHolder | None, lasts_s: float) -> str:
    who = "a process that did not say who it is" if holder is None else str(holder)
    return (
        f"{root} was last written to by {who}; waiting up to {lasts_s:.0f} s to see whether that still runs"
    )
