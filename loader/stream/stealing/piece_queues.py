"""Distributed queues of stealable pieces: one atomic counter per home rank in the rendezvous store."""

from collections.abc import Sequence

from torch.distributed.distributed_c10d import Store

from reelweave.loader.errors import UsageError


class PieceQueues:
    """Queues of one pass over a stream; each number of a home is taken by exactly one rank.

    Pieces of a home are numbered through all steps of the pass, and its counter only rises, by compare-and-set. So each
    piece is taken once even if ranks are several steps apart, and steps leave no keys behind.

    Args:
        store: rendezvous store of all ranks, such as a TCPStore.
        name: name of the pass, equal on all ranks and new for each pass.
        rank: this rank.
        homes: ranks whose pieces this rank may take.
        begun_at: description of the beginning of the pass, equal on all ranks.

    Raises:
        UsageError: this rank has begun a pass of this name before, or another rank begins at another state.
        UsageError: the store has seen this pass of this rank before, or another rank began it otherwise.
    """

    def __init__(self, store: Store, name: str, rank: int, homes: Sequence[int], begun_at: str) -> None:
        self._store, self._name, self._rank = store, name, rank
        if store.add(f"{name}/begun/{rank}", 1) != 1:
            raise UsageError(
                f"the store knows pass {name} of rank {rank} already: give every start of the processes a store of its"
                " own, such as PrefixStore(unique_name, store)"
            )
        first = store.compare_set(f"{name}/at", "", begun_at).decode()
        if first != begun_at:
            raise UsageError(
                f"rank {rank} begins pass {name} with {begun_at}, but another rank with {first}: load one state on all"
                " ranks and begin passes together"
            )
        self._last: dict[int, str] = {}
        for home in homes:
            self._set(home, "", "0:")

    def take(self, home: int, begin: int, end: int) -> int | None:
        """Take the home's next number; None if none is left, or earlier ones are not taken yet.

        Args:
            home: rank of the queue.
            begin: first number that may be taken.
            end: number behind the last.
        """
        while begin <= (index := _number(self._last[home])) < end:
            claim = f"{index + 1}:{self._rank}"
            if self._set(home, self._last[home], claim) == claim:
                return index
        return None

    def count_left(self, home: int, begin: int, end: int) -> int:
        """Return how many of the home's numbers ``begin`` to ``end`` can be taken now, as read from the store."""
        self._last[home] = self._store.get(self._key(home)).decode()
        index = _number(self._last[home])
        return end - index if begin <= index < end else 0

    def may_be_left(self, home: int, number: int) -> bool:
        """Return whether a number is not known to be taken; asks no store."""
        return number >= _number(self._last[home])

    def _set(self, home: int, expected: str, desired: str) -> str:
        """Set the counter if it has the expected value, and return its value; only this rank writes its own suffix."""
        stored = self._store.compare_set(self._key(home), expected, desired).decode()
        self._last[home] = stored
        return stored

    def _key(self, home: int) -> str:
        return f"{self._name}/{home}"


def _number(value: str) -> int:
    return int(value.partition(":")[0])
