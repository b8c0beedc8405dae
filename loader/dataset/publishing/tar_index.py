"""Result of one pass over a tar of other origin: its samples as a table, and what is said of the tar itself."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.dataset.manifest import qualifier
from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.dataset.shard import idx_bytes
from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet

TAR_TABLE = INDEX.append(pa.field("sample_crc32", pa.uint32(), nullable=False)).append(
    pa.field("reason", pa.string(), nullable=False)
)
"""Schema with one row per sample of a tar in its order; ``reason`` says why a sample is unusable, or is empty."""

_FACTS = b"reelweave"


@dataclass(frozen=True, eq=False)
class TarIndex:
    """Result of one pass over a tar.

    Attributes:
        path: path of the tar.
        size: size of the tar in bytes.
        version: version of the object in its storage.
        sha256: checksum of the whole tar.
        damage: damages of the tar itself, one sentence each.
        probe: version of the code that made the pass.
        fields: choice of the fields of its samples' metadata that the table holds.
        left_out: reasons, number and first one of the fields that it does not hold.
        names: names of fields of its samples' metadata, at most some hundreds.
        rows: number of its samples.
        read: function that reads the columns ``TAR_TABLE``; samples with a missing end have size 0.
        qualified: True if the keys in ``table`` are prefixed by the tar's path; they never are in the file.
    """

    path: str
    size: int
    version: str
    sha256: str
    damage: tuple[str, ...]
    probe: int
    rows: int
    read: Callable[[], pa.Table]
    qualified: bool = False
    fields: str = ""
    left_out: tuple[tuple[str, int, str], ...] = ()
    names: tuple[str, ...] = ()

    @staticmethod
    def of(
        path: str,
        size: int,
        version: str,
        sha256: str,
        damage: tuple[str, ...],
        probe: int,
        table: pa.Table,
        fields: str = "",
        left_out: tuple[tuple[str, int, str], ...] = (),
        names: tuple[str, ...] = (),
    ) -> "TarIndex":
        """Return the result with a table in memory."""
        return TarIndex(
            path,
            size,
            version,
            sha256,
            damage,
            probe,
            len(table),
            lambda: table,
            fields=fields,
            left_out=left_out,
            names=names,
        )

    @property
    def table(self) -> pa.Table:
        """Columns ``TAR_TABLE``, read each time."""
        table = self.read()
        if not self.qualified:
            return table
        key = pc.binary_join_element_wise(qualifier(self.path), table.column("key"), "")
        return table.set_column(table.schema.get_field_index("key"), INDEX.field("key"), key)

    def to_bytes(self) -> bytes:
        """Return the content as a parquet file."""
        names = ("path", "size", "version", "sha256", "damage", "probe", "fields", "left_out", "names")
        facts = json.dumps({name: getattr(self, name) for name in names})
        return to_parquet(self.table.replace_schema_metadata({_FACTS: facts}))

    @staticmethod
    def from_bytes(data: bytes) -> "TarIndex | None":
        """Parse such a file; None if it is invalid or of another version of this code."""
        try:
            table = from_parquet(data)
            facts = json.loads((table.schema.metadata or {})[_FACTS])
            table = table.replace_schema_metadata(None)
            if not table.schema.equals(TAR_TABLE):
                return None
            facts |= {name: tuple(facts.get(name, ())) for name in ("damage", "names")}
            counted = [
                (str(reason), int(count), str(first)) for reason, count, first in facts.get("left_out", ())
            ]
            return TarIndex.of(**{**facts, "left_out": tuple(counted)}, table=table)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @property
    def whole(self) -> pa.Table:
        """Rows of the samples that are complete in the tar."""
        return select_whole(self.table)

    @property
    def idx(self) -> bytes:
        """Content of the tar's ``.idx`` file."""
        complete = self.whole
        offsets, sizes = (complete.column(name).to_pylist() for name in ("offset", "size"))
        return idx_bytes(offsets, offsets[-1] + sizes[-1] if offsets else 0)


def select_whole(table: pa.Table) -> pa.Table:
    """Return the rows of the samples that are complete in their tar."""
    return table.filter(pc.greater(table.column("size"), 0))
