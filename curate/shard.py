"""Which kept samples go into which shard, and writing one of them."""

import hashlib
from dataclasses import dataclass, replace

from curate.config import ShardConfig
from curate.ledger import Ledger
from curate.records import Record, Row
from loader.dataset import INDEX, Sample, shard_path, write_shard
from loader.dataset.schema import PLACEMENT


@dataclass(frozen=True)
class ShardPlan:
    """Samples of one shard, in order."""

    number: int
    records: list[Record]

    @property
    def id(self) -> str:
        """Names the shard's place and content."""
        content = ",".join(f"{record.key}:{record.sha256}:{record.caption}" for record in self.records)
        return f"{self.number:06d}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def drop_copies(records: list[Record]) -> list[Record]:
    """Calls every second sample of one key a duplicate of the first; one source under two names gives these.

    ``records`` come sorted, so that which name is kept does not depend on the order of the work.
    """
    first: dict[str, Record] = {}
    result = []
    for record in records:
        kept = first.setdefault(record.key, record) if record.state == "kept" and record.key else record
        if kept is not record:
            reason = f"the same span of the same content as in {kept.source}"
            record = replace(
                record, state="duplicate", stage="shard", reason=reason, duplicate_of=kept.key, key=None
            )
        result.append(record)
    return result


def plan_shards(kept: list[Record], config: ShardConfig) -> list[ShardPlan]:
    """Samples sorted by key, a new shard whenever the next clip would pass the limit; pure.

    A clip larger than the limit gets a shard of its own.
    """
    limit = config.max_shard_mb * 1e6
    plans: list[ShardPlan] = []
    filled = 0.0
    for record in sorted(kept, key=lambda record: record.key or ""):
        if not plans or filled + record.clip_bytes > limit:
            plans.append(ShardPlan(len(plans), []))
            filled = 0.0
        plans[-1].records.append(record)
        filled += record.clip_bytes
    return plans


@dataclass(frozen=True)
class WriteShard:
    """Shard plan row -> row of the written shard; the staged clips come from the ledger one by one."""

    ledger: Ledger

    def __call__(self, row: Row) -> Row:
        """Writes the shard and closes it in the ledger."""
        records = [Record.from_row(record) for record in row["records"]]
        samples = (Sample(index_row(record), self.ledger.read_clip(str(record.key))) for record in records)
        written = write_shard(self.ledger.storage, shard_path(row["number"]), samples)
        result = {"path": written.path, "size": written.size, "sha256": written.sha256, "rows": written.rows}
        self.ledger.close_shard(row["plan_id"], result)
        return {"plan_id": row["plan_id"]}


def index_row(record: Record) -> Row:
    """The sample's index row, without the placement that writing decides."""
    row = record.to_row()
    return {name: row[name] for name in INDEX.names if name not in PLACEMENT}
