"""Dataset contract (docs/dataset.md): writing, opening and verifying datasets."""

from reelweave.loader.dataset.checks.verify import Verification, verify
from reelweave.loader.dataset.manifest import Manifest, Removal, RemovedSpan, read_manifest
from reelweave.loader.dataset.publishing.publication import Content
from reelweave.loader.dataset.publishing.writer import DatasetWriter, publish, settle
from reelweave.loader.dataset.reader import Dataset, open_dataset
from reelweave.loader.dataset.schema import ACCOUNTING, INDEX, SCORES, STATES, Row
from reelweave.loader.dataset.shard import Sample, ShardRecord, next_shard_number, write_shard
from reelweave.loader.dataset.tables.accounting import StageTotal, stage_totals

__all__ = [
    "ACCOUNTING",
    "INDEX",
    "SCORES",
    "STATES",
    "Content",
    "Dataset",
    "DatasetWriter",
    "Manifest",
    "Removal",
    "RemovedSpan",
    "Row",
    "Sample",
    "ShardRecord",
    "StageTotal",
    "Verification",
    "next_shard_number",
    "open_dataset",
    "publish",
    "read_manifest",
    "settle",
    "stage_totals",
    "verify",
    "write_shard",
]
