"""The dataset on disk and everything that reads it: usable alone, without Ray or curation models.

Names are imported when first asked for, so that ``import loader`` costs nothing and torch comes only with
``VideoStream``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader.batch import BadSample, Microbatch, Pack, Step
    from loader.blend import open_source
    from loader.buckets.buckets import Bucket, BucketConfig, assign
    from loader.buckets.cost import LinearQuadraticCost, PowerCost
    from loader.buckets.stats import dataset_stats
    from loader.buckets.tokens import Compression
    from loader.dataset import Dataset, DatasetWriter, Sample, open_dataset, verify
    from loader.errors import RunError, UsageError
    from loader.plan.plan import plan_epoch
    from loader.plan.policy import Division
    from loader.read.share import Share
    from loader.read.stream_config import StreamConfig
    from loader.storage import StorageConfig, open_storage
    from loader.stream.step_loader import StepLoader
    from loader.stream.stream import VideoStream

_HOMES = {
    "BadSample": "loader.batch",
    "Bucket": "loader.buckets.buckets",
    "BucketConfig": "loader.buckets.buckets",
    "Compression": "loader.buckets.tokens",
    "Dataset": "loader.dataset",
    "DatasetWriter": "loader.dataset",
    "Division": "loader.plan.policy",
    "LinearQuadraticCost": "loader.buckets.cost",
    "Microbatch": "loader.batch",
    "Pack": "loader.batch",
    "PowerCost": "loader.buckets.cost",
    "RunError": "loader.errors",
    "Sample": "loader.dataset",
    "Share": "loader.read.share",
    "Step": "loader.batch",
    "StepLoader": "loader.stream.step_loader",
    "StorageConfig": "loader.storage",
    "StreamConfig": "loader.read.stream_config",
    "UsageError": "loader.errors",
    "VideoStream": "loader.stream.stream",
    "assign": "loader.buckets.buckets",
    "dataset_stats": "loader.buckets.stats",
    "open_dataset": "loader.dataset",
    "open_source": "loader.blend",
    "open_storage": "loader.storage",
    "plan_epoch": "loader.plan.plan",
    "verify": "loader.dataset",
}

__all__ = [
    "BadSample",
    "Bucket",
    "BucketConfig",
    "Compression",
    "Dataset",
    "DatasetWriter",
    "Division",
    "LinearQuadraticCost",
    "Microbatch",
    "Pack",
    "PowerCost",
    "RunError",
    "Sample",
    "Share",
    "Step",
    "StepLoader",
    "StorageConfig",
    "StreamConfig",
    "UsageError",
    "VideoStream",
    "assign",
    "dataset_stats",
    "open_dataset",
    "open_source",
    "open_storage",
    "plan_epoch",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loader' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
