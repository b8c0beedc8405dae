"""Heartbeats of ranks: they identify the lost rank when a collective breaks or hangs."""

import os
import sys
import threading
import time
from contextlib import suppress

from torch.distributed.distributed_c10d import Store

_ENDED = "ended"
_NAMED = "heartbeat/lost"


class Heartbeat:
    """Heartbeats in the store of the rendezvous, and the ranks whose heartbeats stop.

    When a process dies, Gloo reports at most its address to its peers, whose own exit breaks the collectives of
    others; NCCL hangs. Each rank therefore watches the next one and ends its own process after the timeout:
    nothing else interrupts a thread inside NCCL.

    Args:
        store: shared by all ranks.
        rank: rank of this process.
        size: number of processes.
        lost_after_s: timeout after which a silent rank counts as lost.
    """

    def __init__(self, store: Store, rank: int, size: int, lost_after_s: float) -> None:
        self._store = store.clone()  # a separate client, since a waiting call blocks all others
        self._rank, self._size, self._lost_after_s = rank, size, lost_after_s
        self._every_s = min(1.0, lost_after_s / 10)
        self._beats = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._beat()
        self._store.wait([_key(rank) for rank in range(size)])
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._thread.start()

    def lost(self) -> str | None:
        """Return the silent ranks in words, or None if all are alive; takes a few heartbeat intervals."""
        try:
            with self._lock:
                if self._store.check([_NAMED]):
                    return str(self._store.get(_NAMED), "utf-8")
                before = self._all()
            time.sleep(3 * self._every_s)
            with self._lock:
                after = self._all()
                # Ranks that ended in good order are not lost.
                silent = [
                    rank for rank in range(self._size) if before[rank] == after[rank] != _ENDED.encode()
                ]
                silent = [rank for rank in silent if rank != self._rank]
                return self._name(_in_words(silent)) if silent else None
        except RuntimeError:
            return "rank 0 or its torchrun, which held the ranks together,"

    def end(self, failed: bool) -> None:
        """Stop; a failed rank counts as lost unless another rank's loss made it fail."""
        self._over.set()
        self._thread.join()
        with self._lock, suppress(RuntimeError):  # the process of the store may be gone
            if failed:
                self._name(_in_words([self._rank]))
            else:
                self._store.set(_key(self._rank), _ENDED)

    def _go_on(self) -> None:
        neighbour = _key((self._rank + 1) % self._size)
        heard, heard_at, began = b"", time.monotonic(), time.monotonic()
        while not self._over.wait(self._every_s):
            try:
                with self._lock:
                    self._beat()
                    beat = self._store.get(neighbour)
            except RuntimeError:  # `lost` reports it once the step fails
                return
            now = time.monotonic()
            # After a pause of this process, silence of others is no evidence.
            paused, began = now - began > self._lost_after_s / 2, now
            if beat != heard or beat == _ENDED.encode() or paused:
                heard, heard_at = beat, now
            elif now - heard_at > self._lost_after_s:
                self._give_up()

    def _give_up(self) -> None:
        with self._lock:
            named = self._name(_in_words([(self._rank + 1) % self._size]))
        silence = f"no sign of life for {self._lost_after_s:g} s"
        sys.stderr.write(f"reelweave: {lost_message(named, silence)}\n")
        sys.stderr.flush()
        os._exit(1)

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(_key(self._rank), str(self._beats))

    def _all(self) -> list[bytes]:
        return list(self._store.multi_get([_key(rank) for rank in range(self._size)]))

    def _name(self, ranks: str) -> str:
        """Record the first lost rank; others that end because of it fall silent soon, too."""
        return str(self._store.compare_set(_NAMED, "", ranks), "utf-8")


def lost_message(who: str, sign: str) -> str:
    """Return the error message for a lost rank.

    Args:
        who: lost ranks, in words.
        sign: evidence at this rank.
    """
    return (
        f"{who} was lost ({sign}); its own output may say why."
        " The same command goes on from the last checkpoint"
    )


def _in_words(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"
