"""The thread of one communicator: it runs the group's calls one by one, in the order in which they were issued."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch.distributed as dist

from tests.strict_group.call import Call
from tests.strict_group.ledger import Ledger, Reader
from tests.strict_group.refused import Gone, Refused

_OTHER = {"send": "recv", "recv": "send"}


class Message(NamedTuple):
    """A send to another rank, or a receive from it.

    Attributes:
        way: ``send`` or ``recv``.
        peer: the other rank, among all.
        call: its tensor.
        start: starts it in gloo.
    """

    way: str
    peer: int
    call: Call
    start: Callable[[], dist.Work]


class Lane:
    """Runs the calls of one group on one rank.

    Args:
        ledger: what all ranks have issued.
        name: name of the group, the same on all of its ranks.
    """

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name
        self._pool = ThreadPoolExecutor(1, f"strict-{name}")
        self._reader: Reader | None = None
        self._collectives = 0
        self._refused: Exception | None = None

    def run_collective(
        self,
        call: Call,
        entry: Mapping[str, Any],
        keys: Mapping[int, str],
        start: Callable[[], dist.Work],
        compare: Callable[[Call, Mapping[str, Any], int, Mapping[str, Any]], None],
    ) -> None:
        """Run a call of all ranks of the group.

        Args:
            call: its tensors.
            entry: what this rank has written of it.
            keys: where the others write theirs.
            start: starts it in gloo.
            compare: refuses an entry of another rank.
        """

        def run() -> None:
            number, self._collectives = self._collectives, self._collectives + 1
            self._at(call, {"collective": number})
            for peer, other in self._read(keys, call.where).items():
                compare(call, entry, peer, other)
            start().wait()

        self._submit([call], run)

    def run_messages(self, messages: Sequence[Message]) -> None:
        """Run sends and receives; several are a batch, whose parts wait for no other."""

        def run() -> None:
            calls, state = {}, []
            for message in messages:
                channel, answers = f"{self._name}:{message.way}", f"{self._name}:{_OTHER[message.way]}"
                state.append([message.way, message.peer, self._ledger.started(channel, message.peer)])
                x = [*message.call.inputs, *message.call.outputs][0]
                text = json.dumps({"size": x.numel(), "dtype": str(x.dtype), "where": message.call.where})
                calls[id(message)] = self._ledger.write(channel, [message.peer], text, answers)
            self._at(messages[0].call, {"messages": state})
            for message in messages:
                where = message.call.where
                [other] = self._read(calls[id(message)], where, self._look_at(message)).values()
                x = [*message.call.inputs, *message.call.outputs][0]
                if (other["size"], other["dtype"]) != (x.numel(), str(x.dtype)):
                    raise Refused(f"{where}, but {other['where']}")
            for work in [message.start() for message in messages]:
                work.wait()

        self._submit([message.call for message in messages], run)

    def close(self) -> None:
        """Wait for the thread."""
        self._pool.shutdown()

    def _submit(self, calls: Sequence[Call], run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                if self._refused:
                    raise self._refused
                run()
            except Refused as error:
                self._refused = error
                self._ledger.refuse(str(error))
            except RuntimeError as error:
                # Gloo breaks where another rank has ended, which then says why.
                self._refused = self._why(error, calls[0].where)
            for call in calls:
                if self._refused:
                    call.done.set_exception(self._refused)
                else:
                    call.done.set_result(None)

        self._pool.submit(guarded)

    def _why(self, error: RuntimeError, where: str) -> Exception:
        try:
            words = self._reader.refusal() if self._reader else ""
        except RuntimeError:  # the store is gone, too
            words = ""
        return Refused(words) if words else Gone(f"{where}: {error}")

    def _read(
        self, keys: Mapping[int, str], where: str, look: Callable[[], None] = lambda: None
    ) -> dict[int, dict[str, Any]]:
        self._reader = self._reader or Reader(self._ledger)
        return self._reader.read(keys, where, look)

    def _at(self, call: Call, state: dict[str, Any]) -> None:
        """Say which call this rank runs now."""
        self._ledger.set(f"at/{self._name}/{self._ledger.rank}", json.dumps({"where": call.where, **state}))

    def _look_at(self, message: Message) -> Callable[[], None]:
        """Return a look at the other rank of a message: does it wait for a call that is behind this one here?"""

        def look() -> None:
            assert self._reader
            at = self._reader.now(f"at/{self._name}/{message.peer}")
            if at is None:
                return
            waits = at.get("collective", -1) >= self._collectives
            for way, peer, number in at.get("messages", []):
                answers = self._ledger.started(f"{self._name}:{_OTHER[way]}", message.peer)
                waits |= peer == self._ledger.rank and number >= answers
            if waits:
                raise Refused(f"{message.call.where} and {at['where']} wait for each other, one stream each")

        return look
