"""Segments of the ledger, written by the driver while workers go on, so that a restart reads few files."""

from collections import defaultdict
from typing import TYPE_CHECKING

from curate.ledger import Ledger

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_ENTRIES = 4096


class Segments:
    """Entries that workers have recorded one by one; many of a stage become a segment.

    Args:
        ledger: Ledger that holds them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loose: dict[tuple[str, str], dict[str, DataclassInstance]] = defaultdict(dict)

    def add(self, stage: str, fingerprint: str, identity: str, record: "DataclassInstance") -> None:
        """Count an entry that is in the ledger; move it into a segment with others once there are enough."""
        loose = self._loose[stage, fingerprint]
        loose[identity] = record
        if len(loose) >= _ENTRIES:
            self._ledger.append(stage, fingerprint, loose)
            loose.clear()
