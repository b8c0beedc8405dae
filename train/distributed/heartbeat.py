"""Heartbeats of ranks: they identify the lost rank when a collective breaks or hangs."""

import os
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from torch.distributed.distributed_c10d import Store

from reelweave.train.distributed.launcher import Launcher

_ENDED, _TOLD = "ended", "told"
_NAMED, _NOBODY = "heartbeat/lost", "nobody"
_HOLDER = "rank 0 or its torchrun, which held the ranks together,"


class Heartbeat:
    """Heartbeats in the store of the rendezvous, and the ranks whose heartbeats stop.

    When a process dies, Gloo reports at most its address to its peers, whose own exit breaks the collectives of
    others; NCCL hangs. Each rank therefore watches the next one and ends its own process after the timeout:
    nothing else interrupts a thread inside NCCL.

    The first lost rank is recorded in the store, and every rank reads the record at each of its own heartbeats. Rank 0,
    which may hold the store, ends a failed run only after all others have read it: the store is gone with its process.

    Args:
        store: shared by all ranks.
        rank: rank of this process.
        size: number of processes.
        lost_after_s: timeout after which a silent rank counts as lost.
        launcher: launcher of this rank, which may hold the store.
    """

    def __init__(self, store: Store, rank: int, size: int, lost_after_s: float, launcher: Launcher) -> None:
        self._launcher = launcher
        self._store = store.clone()  # a separate client, since a waiting call blocks all others
        self._rank, self._size, self._lost_after_s = rank, size, lost_after_s
        self._every_s = min(1.0, lost_after_s / 10)
        self._beats, self._first_ended = 0, False
        self._named: list[int] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        if rank == 0:
            self._store.set(_NAMED, _NOBODY)
        self._beat()
        self._store.wait([_NAMED, *map(_key, range(size))])
        self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
        self._thread.start()

    def describe_lost(self) -> str | None:
        """Return the lost ranks in words, or None if all are alive; may take a few heartbeat intervals."""
        try:
            everyone = range(self._size)
            before = self._read(everyone)
            if not self._named:
                time.sleep(3 * self._every_s)
                after = self._read(everyone)
                # Ranks that ended in good order are not lost.
                silent = [
                    rank for rank in everyone if before[rank] == after[rank] != _ENDED and rank != self._rank
                ]
                if silent and not self._named:
                    self._name(silent)
        except RuntimeError:
            if not self._named:
                return _HOLDER
        # The failure of this rank, of which others have heard, is its own to report.
        return None if self._named in ([], [self._rank]) else _in_words(self._named)

    def end(self, failed: int | None) -> None:
        """End the heartbeats of this rank.

        Args:
            failed: rank whose failure ends this one, usually its own, which counts as lost unless another was before
                it; None after a good end.
        """
        self._over.set()
        self._thread.join()
        with suppress(RuntimeError):  # the process of the store may be gone
            if failed is None:
                with self._lock:
                    self._store.set(_key(self._rank), _ENDED)
                # The store may end with rank 0, and others use it until they end. They see that this one has.
                self._wait_for_others(lambda beat: beat == _ENDED)
            else:
                self._name([failed])
                self._wait_for_others()

    def _go_on(self) -> None:
        neighbour = (self._rank + 1) % self._size
        heard, heard_at, began = "", time.monotonic(), time.monotonic()
        while not self._over.wait(self._every_s):
            try:
                self._beat()
                beats = self._read([neighbour, 0])
                beat, self._first_ended = beats[neighbour], beats[0] == _ENDED
            except RuntimeError:  # `describe_lost` reports it once the step fails
                if not self._over.is_set():
                    self._go_on_without_store()
                return
            now = time.monotonic()
            # After a pause of this process, silence of others is no evidence.
            paused, began = now - began > self._lost_after_s / 2, now
            if self._named:
                # Collectives of NCCL go on waiting, so that nothing else would end this process.
                if not self._over.wait(self._lost_after_s):
                    self._give_up(self._named, f"this rank still waits after {self._lost_after_s:g} s")
                return
            if beat != heard or beat == _ENDED or paused:
                heard, heard_at = beat, now
            elif now - heard_at > self._lost_after_s:
                with suppress(RuntimeError):
                    self._name([neighbour])
                self._give_up(self._named or [neighbour], f"no sign of life for {self._lost_after_s:g} s")

    def _go_on_without_store(self) -> None:
        """End this process if nothing else does: NCCL's collectives do not break when rank 0 is lost, and the store."""
        self._launcher.store_is_gone()
        if not self._first_ended and not self._over.wait(self._lost_after_s):
            sign = f"this rank still waits after {self._lost_after_s:g} s"
            sys.stderr.write(f"reelweave: {lost_message(_HOLDER, sign)}\n")
            sys.stderr.flush()
            os._exit(1)

    def _give_up(self, lost: list[int], sign: str) -> None:
        sys.stderr.write(f"reelweave: {lost_message(_in_words(lost), sign)}\n")
        sys.stderr.flush()
        with suppress(RuntimeError):
            self._wait_for_others()
        os._exit(1)

    def _wait_for_others(self, over: Callable[[str], bool] = lambda beat: beat in (_ENDED, _TOLD)) -> None:
        """Wait until every rank that is not lost knows which one is; on rank 0, and no longer than the timeout.

        Args:
            over: whether a rank of such a heartbeat needs to be waited for no more.
        """
        until = time.monotonic() + self._lost_after_s
        waiting = set(range(1, self._size)) - set(self._named)
        while self._rank == 0 and waiting and time.monotonic() < until:
            beats = self._read(waiting)
            waiting = {rank for rank in waiting - set(self._named) if not over(beats[rank])}
            time.sleep(min(0.02, self._every_s / 10))

    def _beat(self) -> None:
        with self._lock:
            if not self._named:
                self._beats += 1
                self._store.set(_key(self._rank), str(self._beats))

    def _read(self, ranks: Collection[int]) -> dict[int, str]:
        """Return the heartbeats of ranks; note which ones were lost first, if any were, and confirm it."""
        with self._lock:
            *beats, named = self._store.multi_get([*map(_key, ranks), _NAMED])
            self._note(named)
        return {rank: str(beat, "utf-8") for rank, beat in zip(ranks, beats, strict=True)}

    def _name(self, ranks: list[int]) -> None:
        """Record the first lost ranks; others that end because of them fall silent soon, too."""
        with self._lock:
            self._note(self._store.compare_set(_NAMED, _NOBODY, ",".join(map(str, ranks))))

    def _note(self, named: bytes) -> None:
        words = str(named, "utf-8")
        if words != _NOBODY and not self._named:
            self._named = [int(rank) for rank in words.split(",")]
            self._store.set(_key(self._rank), _TOLD)


def names_lost(store: Store) -> bool:
    """Return whether a rank is recorded as lost."""
    return store.check([_NAMED]) and str(store.get(_NAMED), "utf-8") != _NOBODY


def lost_message(who: str, sign: str) -> str:
    """Return the error message for a lost rank.

    Args:
        who: lost ranks, in words.
        sign: evidence at this rank.
    """
    cause = sign.partition(". This is typically caused")[0]  # Gloo's advice
    return f"{who} was lost ({cause}); its own output may say why. The same command goes on where it stopped"


def _in_words(ranks: list[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


def _key(rank: int) -> str:
    return f"heartbeat/{rank}"
