"""The dataset on disk and everything that reads it: usable alone, without Ray or curation models.

Names are imported when first asked for, so that ``import loader`` costs nothing and torch comes only with
``VideoStream``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loader.batch import BadSample, Microbatch, Pack, Step
    from loader.blend import open_source
    from loader.buckets import Bucket, BucketConfig, assign
    from loader.cost import LinearQuadraticCost, PowerCost
    from loader.dataset import Dataset, DatasetWriter, Sample, open_dataset, verify
    from loader.errors import RunError, UsageError
    from loader.plan import plan_epoch
    from loader.policy import Division
    from loader.share import Share
    from loader.stats import dataset_stats
    from loader.step_loader import StepLoader
    from loader.storage import StorageConfig, open_storage
    from loader.stream import VideoStream
    from loader.stream_config import StreamConfig
    from loader.tokens import Compression

_HOMES = {
    "BadSample": "loader.batch",
    "Bucket": "loader.buckets",
    "BucketConfig": "loader.buckets",
    "Compression": "loader.tokens",
    "Dataset": "loader.dataset",
    "DatasetWriter": "loader.dataset",
    "Division": "loader.policy",
    "LinearQuadraticCost": "loader.cost",
    "Microbatch": "loader.batch",
    "Pack": "loader.batch",
    "PowerCost": "loader.cost",
    "RunError": "loader.errors",
    "Sample": "loader.dataset",
    "Share": "loader.share",
    "Step": "loader.batch",
    "StepLoader": "loader.step_loader",
    "StorageConfig": "loader.storage",
    "StreamConfig": "loader.stream_config",
    "UsageError": "loader.errors",
    "VideoStream": "loader.stream",
    "assign": "loader.buckets",
    "dataset_stats": "loader.stats",
    "open_dataset": "loader.dataset",
    "open_source": "loader.blend",
    "open_storage": "loader.storage",
    "plan_epoch": "loader.plan",
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
