"""The whole configuration of ``reelweave curate``."""

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from curate.captions import CaptionConfig
from curate.cut import CutConfig
from curate.filters import FilterConfig
from curate.probe import ProbeConfig
from curate.shots import ColourDetectorConfig
from curate.spans import SpanConfig
from loader.storage import StorageConfig


class ShardConfig(BaseModel, frozen=True, extra="forbid"):
    """How samples are packed into shards."""

    max_shard_mb: float = Field(256.0, gt=0, description="megabytes (10^6 bytes) of clips per shard")


class RunConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the stages run."""

    runner: Literal["ray", "sequential"] = Field(
        "ray",
        description="ray: Ray Data, on this machine or the cluster of RAY_ADDRESS; sequential: this process",
    )


class CurateConfig(BaseModel, frozen=True, extra="forbid"):
    """One model per stage, in the order of the journey."""

    probe: ProbeConfig = ProbeConfig()
    shots: ColourDetectorConfig = ColourDetectorConfig()
    spans: SpanConfig = SpanConfig()
    filters: FilterConfig = FilterConfig()
    cut: CutConfig = CutConfig()
    captions: CaptionConfig = CaptionConfig()
    shard: ShardConfig = ShardConfig()
    storage: StorageConfig = StorageConfig()
    run: RunConfig = RunConfig()

    def content(self) -> dict[str, Any]:
        """The part that decides the bytes of the dataset: not where it lies, nor where the stages run."""
        return self.model_dump(mode="json", exclude={"storage", "run"})

    def clip_fingerprint(self) -> str:
        """Changes when any clip or caption could come out differently; sharding does not touch it."""
        return fingerprint(self.model_dump(mode="json", exclude={"storage", "run", "shard"}))


def fingerprint(value: Any) -> str:
    """A short digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
