"""Results of the parts of a long source, in the ledger until the source is closed.

Names follow from source, configuration and number of parts. What a step found is written first and its note last, so
that a killed worker leaves a step done or not done.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import from_json, to_json

PARTS = "parts/"

SCAN = "scan"
"""Step that decodes a part."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class StepNote:
    """End of one step of a source in parts.

    Attributes:
        fault: Reason why the source stays whole, or None.
        lost: Reason why the worker was lost every time, or None; the source fails with it.
        cpu_s: Processor seconds.
        seconds: Wall time.
        file: State of the source's file meanwhile.
        operation_s: Processor seconds by operation.
        found: Other results of the step, as JSON values.
    """

    fault: str | None = None
    lost: str | None = None
    cpu_s: float = 0.0
    seconds: float = 0.0
    operation_s: dict[str, float] = field(default_factory=dict)
    file: tuple[str, ...] = ()
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PartStore:
    """Place of what is known of the parts of one source.

    Attributes:
        ledger: The ledger.
        folder: Folder of the source in it.
        count: Number of parts.
    """

    ledger: Ledger
    folder: str
    count: int

    def note(self, step: str, part_index: int = 0) -> StepNote | None:
        """Return the note of a step, or None where it has not ended."""
        values = self.ledger.notes.read(self._name(step, part_index))
        return None if values is None else from_json(StepNote, values)

    def end(self, step: str, part_index: int, note: StepNote, arrays: Arrays | None = None) -> None:
        """Record that a step has ended, with the arrays that it made."""
        if arrays is not None:
            self.put(step, part_index, arrays)
        self.ledger.notes.write(self._name(step, part_index), to_json(note))

    def put(self, kind: str, part_index: int, arrays: Arrays, item: int | None = None) -> None:
        """Write arrays of a part, or of one item in it."""
        self.ledger.blobs.write_table(self._name(kind, part_index, item), _to_table(arrays))

    def arrays(self, kind: str, part_index: int = 0, item: int | None = None) -> dict[str, NDArray[Any]]:
        """Return arrays that were put, or none."""
        table = self.ledger.blobs.read_table(self._name(kind, part_index, item))
        return {} if table is None else _from_table(table)

    def drop(self) -> None:
        """Remove all that is known of the source's parts, in any number of them."""
        self.ledger.storage.delete_tree(f"{LEDGER}{self.folder}")

    def _name(self, kind: str, part_index: int, item: int | None = None) -> str:
        name = f"{self.folder}{self.count}/{kind}-{part_index:04d}"
        return name if item is None else f"{name}/{item}"


def _to_table(arrays: Arrays) -> pa.Table:
    rows: Sequence[dict[str, Any]] = [
        {
            "name": name,
            "dtype": array.dtype.str,
            "shape": array.shape,
            "data": np.ascontiguousarray(array).tobytes(),
        }
        for name, array in arrays.items()
    ]
    schema = [
        ("name", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("data", pa.binary()),
    ]
    return pa.Table.from_pylist(rows, pa.schema(schema))


def _from_table(table: pa.Table) -> dict[str, NDArray[Any]]:
    return {
        row["name"]: np.frombuffer(row["data"], row["dtype"]).reshape(row["shape"])
        for row in table.to_pylist()
    }
