"""Sources that a fault of the machine left undone: what a run says of them at its end."""

import pyarrow.compute as pc

from reelweave.curate.sources.addresses import UNANSWERED, is_unanswered
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import MachineError
from reelweave.loader.text import pluralize

_NAMED = 5
_MOST_IN_A_ROW = 16
"""Sources left undone one after the other, after which the rest is not tried: a whole disk or network is gone."""


def describe_unanswered(dataset: Dataset) -> tuple[str, ...]:
    """Return in words how many sources of a dataset failed since their web servers gave no answer.

    They were left undone in the run before, and are rows of the accounting then: a list may name servers that are gone
    for good.
    """
    if not dataset.manifest.totals.accounting["failed"]:
        return ()
    count, first = 0, ""
    for part in dataset.table_parts("accounting", ("source", "state", "reason")):
        reasons = pc.fill_null(part.column("reason"), "")
        failed = pc.and_(
            pc.equal(part.column("state"), "failed"), pc.match_substring_regex(reasons, UNANSWERED)
        )
        names = part.column("source").filter(failed)
        count += len(names)
        first = first or (names[0].as_py() if len(names) else "")
    if not count:
        return ()
    return (
        f"{pluralize(count, 'source')} failed since their web servers gave no answer in two runs (5xx, timeouts, broken"
        f" connections; the first: {first}); --retry-failed asks again",
    )


class Undone:
    """Sources left undone in a run, with their faults."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._in_a_row = 0

    def __contains__(self, uri: str) -> bool:
        return uri in self._reasons

    def add(self, uri: str, reason: str) -> None:
        """Note a source that is left undone.

        Raises:
            MachineError: too many were left undone one after the other.
        """
        # Of a list on the web, servers that are gone lie side by side.
        self._in_a_row += uri not in self._reasons and not is_unanswered(reason)
        self._reasons.setdefault(uri, reason)
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise self._error(f"stopped after {self._in_a_row} sources in a row, since")

    def note_success(self) -> None:
        """Note that a source could be worked on."""
        self._in_a_row = 0

    def refuse(self, count: int) -> None:
        """Raise a `MachineError` that names the sources, where there are any.

        Args:
            count: Number of all sources.
        """
        if self._reasons:
            raise self._error(
                f"{len(self._reasons)} of {count} sources are left undone, the others are done:"
            )

    def _error(self, begin: str) -> MachineError:
        named = [_undone_sentence(uri, reason) for uri, reason in list(self._reasons.items())[:_NAMED]]
        more = f"; and {len(self._reasons) - _NAMED} more" if len(self._reasons) > _NAMED else ""
        silent = sum(map(is_unanswered, self._reasons.values()))
        web = (
            f" {pluralize(silent, 'source lies', 'sources lie')} on web servers that gave no answer: the next run asks"
            " once more, and then takes them for gone."
            if silent
            else ""
        )
        return MachineError(
            f"{begin} this machine could not read them or work on them. Nothing is published:"
            f" {'; '.join(named)}{more}.{web} Mend the disk, the network, the permissions or the lack of memory, or"
            " take them out of the input; the same command goes on",
            lasts=True,
        )


def _undone_sentence(uri: str, reason: str) -> str:
    return reason if uri in reason else f"{uri}: {reason}"
