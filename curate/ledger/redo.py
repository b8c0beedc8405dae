"""Note of the ledger while results are made anew: the revisions of the dataset that have the old ones.

Once all is in the ledger, nothing else tells that it is not published.
"""

from reelweave.curate.ledger.ledger import Ledger

_NOTE = "redo"
_ANY = None
"""Revision of a note that holds until the results are published: a take-down has published another one meanwhile."""


def begin_redo(ledger: Ledger, revision: int) -> None:
    """Note that results are made anew for a dataset that has a revision."""
    ledger.notes.write(_NOTE, {"revision": revision})


def is_redone(ledger: Ledger, revision: int) -> bool:
    """Return whether results were made anew that a revision of the dataset does not have."""
    note = ledger.notes.read(_NOTE)
    return note is not None and note["revision"] in (revision, _ANY)


def carry_redo(ledger: Ledger, revision: int) -> None:
    """Keep the note, before another revision with the old results is published under any number."""
    if is_redone(ledger, revision):
        ledger.notes.write(_NOTE, {"revision": _ANY})


def end_redo(ledger: Ledger) -> None:
    """Note that the results are published."""
    ledger.notes.drop(_NOTE)
