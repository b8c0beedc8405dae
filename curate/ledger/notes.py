"""Notes of the ledger: JSON values for people and later runs."""

import json
from dataclasses import dataclass
from typing import Any

from reelweave.curate.ledger.files import LEDGER, intact
from reelweave.loader.storage.base import Storage

RUN = "run"
"""Note of the ledger: duration, costs and worker plans of the last run."""


@dataclass(frozen=True)
class LedgerNotes:
    """JSON values by name: the configuration, the status, measured rates.

    Attributes:
        storage: Storage of the dataset.
    """

    storage: Storage

    def write(self, name: str, value: Any) -> None:
        """Write a JSON value for people and later runs: the configuration, the status, measured rates."""
        self.storage.write(f"{LEDGER}{name}.json", json.dumps(value, indent=1, ensure_ascii=False).encode())

    def read(self, name: str) -> Any:
        """Return a JSON value, or None."""
        path = f"{LEDGER}{name}.json"
        try:
            data = self.storage.read(path)
        except FileNotFoundError:
            return None
        with intact(self.storage, path):
            return json.loads(data)

    def drop(self, name: str) -> None:
        """Delete the note of a name, as `write` wrote it."""
        self.storage.delete(f"{LEDGER}{name}.json")
