"""The whole configuration of ``reelweave curate``."""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from curate.caption import CaptionConfig
from curate.cut import CutConfig
from curate.dedup import DedupConfig
from curate.filters import FilterConfig, ScoreConfig
from curate.frames.probe import ProbeConfig
from curate.models.aesthetic import AestheticConfig
from curate.models.embed import EmbedConfig
from curate.models.text_embed import TextEmbedConfig
from curate.shots import ShotConfig
from curate.shots.spans import SpanConfig
from curate.shots.stitch import StitchConfig
from loader.storage import StorageConfig


class BinConfig(BaseModel, frozen=True, extra="forbid"):
    """Groups of shapes whose clips share shards. An edge list [a, b] makes three groups: below a, a to b, b and above.

    Every clip falls into a group, since the outer ones are open.
    """

    aspect: tuple[float, ...] = Field((), description="edges of width / height")
    short_side_px: tuple[int, ...] = Field((), description="edges of the short side, pixels")
    frames: tuple[int, ...] = Field((), description="edges of the clip's length, frames")


class ShardConfig(BaseModel, frozen=True, extra="forbid"):
    """How samples are packed into shards."""

    max_shard_mb: float = Field(256.0, gt=0, description="megabytes (10^6 bytes) of clips per shard")
    bins: BinConfig = BinConfig()
    val_share: float = Field(
        0.0, ge=0, lt=1, description="share of the sources whose clips become the validation split"
    )


class RunConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the stages run, and what may happen to a worker. No part of it changes the dataset's bytes."""

    runner: Literal["ray", "sequential"] = Field(
        "ray",
        description="ray: Ray Data, on this machine or the cluster of RAY_ADDRESS; sequential: this process",
    )
    isolate: bool = Field(
        True, description="decode in a child process, so that a crashing decoder costs only its own source"
    )
    attempts: int = Field(
        3, ge=1, le=10, description="child processes a source may kill before it is quarantined"
    )
    max_source_s: float = Field(
        6 * 3600.0, gt=0, description="seconds of work after which a source counts as hanging"
    )
    worker_memory_mb: int = Field(
        1536, gt=0, description="memory Ray reserves for one worker that cuts, megabytes"
    )
    model_cpus: float = Field(1.0, ge=0, description="processors a worker with a model occupies")
    shots_gpus: float = Field(
        0.1,
        ge=0,
        description="share of a GPU one cutting worker takes, where shots.device puts a network on it",
    )
    embed_gpus: float = Field(
        0.25, ge=0, description="share of a GPU one embedding worker takes, if there is one"
    )
    caption_gpus: float = Field(1.0, ge=0, description="GPUs one captioning worker takes, if there are any")
    text_embed_gpus: float = Field(0.25, ge=0, description="share of a GPU one text embedding worker takes")
    keep_rejected: bool = Field(
        True,
        description="keep clips no threshold let through in .ledger, so that another threshold decodes nothing",
    )


class SourceStageConfig(BaseModel, frozen=True, extra="forbid"):
    """What decides the clips of a source, their scores and fingerprints.

    Attributes:
        REVISION: Raise it when the same configuration gives other bytes than before, so that the ledger notices.
    """

    REVISION: ClassVar = 5

    probe: ProbeConfig = ProbeConfig()
    shots: ShotConfig = ShotConfig()
    stitch: StitchConfig = StitchConfig()
    spans: SpanConfig = SpanConfig()
    cut: CutConfig = CutConfig()
    scores: ScoreConfig = ScoreConfig()


class CurateConfig(SourceStageConfig, frozen=True, extra="forbid"):
    """One model per stage, in the order of the journey."""

    filters: FilterConfig = FilterConfig()
    embed: EmbedConfig = EmbedConfig()
    aesthetic: AestheticConfig = AestheticConfig()
    captions: CaptionConfig = CaptionConfig()
    text_embed: TextEmbedConfig = TextEmbedConfig()
    dedup: DedupConfig = DedupConfig()
    shard: ShardConfig = ShardConfig()
    storage: StorageConfig = StorageConfig()
    run: RunConfig = RunConfig()

    def content(self) -> dict[str, Any]:
        """The part that decides the bytes of the dataset: not where it lies, nor where the stages run."""
        return {name: values for name, values in content_of(self).items() if name not in ("storage", "run")}

    def source_stage(self) -> SourceStageConfig:
        """The part that decides what comes out of a source."""
        return SourceStageConfig(**{name: getattr(self, name) for name in SourceStageConfig.model_fields})


def content_of(config: BaseModel) -> dict[str, Any]:
    """A configuration as JSON values, without the fields its ``SPEED_ONLY`` names: they change no result."""
    values = config.model_dump(mode="json", exclude=set(getattr(config, "SPEED_ONLY", ())))
    for name in values:
        if isinstance(part := getattr(config, name), BaseModel):
            values[name] = content_of(part)
    return values


def fingerprint(*configs: BaseModel, models: Mapping[str, str] = MappingProxyType({})) -> str:
    """A short digest of what configurations, and contents of the models they name, say about results."""
    values: list[dict[str, Any]] = []
    for config in configs:
        revision = getattr(config, "REVISION", None)
        values.append(content_of(config) | ({} if revision is None else {"revision": revision}))
    if models:
        values.append(dict(models))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
