"""Dataset contract (docs/dataset.md): writing, opening and verifying datasets."""

from loader.dataset.checks.verify import Verification, verify
from loader.dataset.manifest import Manifest, Removal, RemovedSpan, read_manifest
from loader.dataset.publishing.publication import Content
from loader.dataset.publishing.writer import DatasetWriter, publish, settle
from loader.dataset.reader import Dataset, open_dataset
from loader.dataset.schema import ACCOUNTING, INDEX, SCORES, STATES, Row
from loader.dataset.shard import Sample, ShardRecord, next_shard_number, write_shard
from loader.dataset.tables.accounting import StageTotal, stage_totals

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
