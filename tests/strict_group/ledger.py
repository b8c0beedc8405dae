"""What every rank has issued, in order, in the run's store.

Two ranks that are in several groups together must issue the calls of these in one order: each call holds its GPU until
all of its ranks have come. So a rank counts, for every other rank, the calls that both are in, of any group. Under that
number it writes the call, and the other compares. Ranks read with connections of their own, since a store's client
answers one request at a time, and a read waits.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tests.strict_group.refused import Gone, Refused

_LOOK_S = 0.5  # between looks at whether another rank was refused
_END = "end"
_REFUSED = "refused"


class Ledger:
    """The store as one rank reads and writes it; one object for all of its groups.

    Args:
        store: store of the default group.
        rank: this rank, among all.
        patience_s: time after which a rank that has not come is told.
    """

    def __init__(self, store: dist.Store, rank: int, patience_s: float) -> None:
        self._store, self.rank, self._patience_s = _connect(store), rank, patience_s
        self._base = store
        self._counts: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def write(
        self, channel: str, peers: Sequence[int], text: str, answers: str | None = None
    ) -> dict[int, str]:
        """Write a call for other ranks.

        Args:
            channel: sequence that is counted by itself.
            peers: the other ranks.
            text: the call.
            answers: sequence in which the others write theirs; None: the same.

        Returns:
            The key under which each of them writes its own.
        """
        with self._lock:
            written, read = {}, {}
            for peer in peers:
                number = self._counts[channel, peer]
                self._counts[channel, peer] += 1
                written[f"{channel}/{self.rank}>{peer}/{number}"] = text
                read[peer] = f"{answers or channel}/{peer}>{self.rank}/{number}"
            if written:
                self._store.multi_set(list(written), list(written.values()))
        return read

    def end(self, channel: str, peers: Sequence[int]) -> None:
        """Say that no further call of a channel will come."""
        self.write(channel, peers, _END)

    def refuse(self, message: str) -> None:
        """Say to all ranks that a call of this one was refused; they hear the first."""
        with self._lock:
            self._store.compare_set(_REFUSED, "", message)

    def set(self, key: str, value: str) -> None:
        """Write what only the latest value of counts."""
        with self._lock:
            self._store.set(key, value)

    def started(self, channel: str, peer: int) -> int:
        """Return the number of calls that were written for another rank in a channel."""
        with self._lock:
            return self._counts[channel, peer]


class Reader:
    """A connection of one thread, which reads what other ranks have written."""

    def __init__(self, ledger: Ledger) -> None:
        self._store, self._patience_s = _connect(ledger._base), ledger._patience_s

    def read(
        self, keys: Mapping[int, str], where: str, each_look: Any = lambda: None
    ) -> dict[int, dict[str, Any]]:
        """Return what the other ranks of a call have written, once all have.

        Args:
            keys: key of each rank.
            where: this call, in words.
            each_look: called again and again while ranks are missing; raises what it sees.

        Raises:
            Refused: a rank does not come, or was refused.
            Gone: a rank has left.
        """
        began = time.monotonic()
        for peer, key in keys.items():
            while not self._wait(key):
                if words := self.refusal():
                    raise Refused(words)
                each_look()
                if time.monotonic() - began > self._patience_s:
                    raise Refused(f"{where}: rank {peer} has not come for {self._patience_s:g} s")
        found = dict(zip(keys, self._store.multi_get(list(keys.values())), strict=True)) if keys else {}
        for peer, text in found.items():
            if text.decode() == _END:
                raise Gone(f"{where}: rank {peer} has left the group, and never comes to this")
        return {peer: json.loads(text) for peer, text in found.items()}

    def now(self, key: str) -> dict[str, Any] | None:
        """Return what stands under a key; None if nothing does."""
        found: dict[str, Any] | None = json.loads(self._store.get(key)) if self._store.check([key]) else None
        return found

    def refusal(self) -> str:
        """Return why another rank was refused; "" if none was."""
        return self._store.get(_REFUSED).decode() if self._store.check([_REFUSED]) else ""

    def _wait(self, key: str) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=_LOOK_S))
        except dist.DistStoreError:
            return False
        return True


def _connect(store: dist.Store) -> dist.Store:
    """Return the part of a store for this module, by a connection of its own where there is a server."""
    return dist.PrefixStore("strict", store.clone())
