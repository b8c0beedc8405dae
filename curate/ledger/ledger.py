"""Record of finished work, kept beside the dataset: entries of stages, staged clips, arrays.

An entry is keyed by stage, fingerprint of that stage's own configuration, and identity of its input. Another prompt
therefore gives new captions and keeps the clips; a threshold is no stage and repeats nothing. Workers write
entries one by one. The driver moves them into segments, tables in Parquet, as the run goes on. A restart thus
reads a few large files and no object for each entry.
"""

from dataclasses import dataclass

from reelweave.curate.ledger.blobs import LedgerBlobs
from reelweave.curate.ledger.entries import LedgerEntries
from reelweave.curate.ledger.notes import LedgerNotes
from reelweave.loader.storage.base import Storage


@dataclass(frozen=True)
class Ledger:
    """The ledger of a dataset. Every write is atomic and may be repeated.

    Attributes:
        storage: Storage of the dataset.
    """

    storage: Storage

    @property
    def entries(self) -> LedgerEntries:
        """Results of stages, keyed by fingerprint and input."""
        return LedgerEntries(self.storage)

    @property
    def blobs(self) -> LedgerBlobs:
        """Staged clips, arrays and tables."""
        return LedgerBlobs(self.storage)

    @property
    def notes(self) -> LedgerNotes:
        """JSON values for people and later runs."""
        return LedgerNotes(self.storage)
