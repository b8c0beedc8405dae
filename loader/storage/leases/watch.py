"""Watch of a lease that is not taken, which tells whether somebody writes to an output."""

from collections.abc import Callable
from dataclasses import dataclass, field

from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.leases.holder import LeaseHolder, read_holder
from reelweave.loader.storage.leases.timed_lease import LONGEST_S, elapsed_s
from reelweave.loader.storage.names import LEASE


@dataclass(frozen=True)
class Writer:
    """Process that writes to an output, as its lease tells.

    Attributes:
        is_there: whether somebody writes; None where that is not known yet.
        holder: holder that the lease names; None without a lease, or where it is damaged.
    """

    is_there: bool | None
    holder: LeaseHolder | None = None


@dataclass
class LeaseWatch:
    """Look at a lease again and again; nothing is locked, written or renewed.

    A lease that its holder renews is watched by this machine's clock alone, as writers do before they take one over.

    Attributes:
        storage: storage that may be leased.
        clock: function that returns elapsed seconds.
    """

    storage: Storage
    clock: Callable[[], float] = elapsed_s
    _seen: LeaseHolder | None = field(default=None, init=False)
    _since: float = field(default=0.0, init=False)

    def look(self) -> Writer:
        """Return what the lease tells now."""
        holder = read_holder(self.storage)
        if holder is None:
            # A damaged lease, or one that is about to be written, is somebody's.
            return Writer(False if self.storage.stat(LEASE) is None else None)
        if holder.runs is not None:
            return Writer(holder.runs, holder)
        now, before = self.clock(), self._seen
        if holder != before:
            self._seen, self._since = holder, now
            renewed = before is not None and before.id == holder.id
            return Writer(True if renewed else None, holder)
        has_run_out = 0 < min(holder.lasts_s, LONGEST_S) < now - self._since
        return Writer(False if has_run_out else None, holder)
