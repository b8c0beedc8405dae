"""Complete configuration of ``reelweave curate``."""

import hashlib
import itertools
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, SerializeAsAny, ValidationInfo, WithJsonSchema, field_validator

from reelweave.curate.caption import CaptionConfig
from reelweave.curate.cut import CutConfig
from reelweave.curate.dedup import DedupConfig
from reelweave.curate.filters import FilterConfig, ScoreConfig
from reelweave.curate.frames.probe import ProbeConfig
from reelweave.curate.models.aesthetic import AestheticConfig
from reelweave.curate.models.custom.configured import check_embeds, check_thresholds, configure_stages
from reelweave.curate.models.custom.types import StageConfig
from reelweave.curate.models.embed import STAGES, EmbedConfig
from reelweave.curate.models.text_embed import TextEmbedConfig
from reelweave.curate.shots import ShotConfig
from reelweave.curate.shots.spans import SpanConfig
from reelweave.curate.shots.stitch import StitchConfig
from reelweave.loader.settings import SET, Except, Settings
from reelweave.loader.storage import StorageConfig


class BinConfig(Settings):
    """Groups of clips by shape and length that share shards. An edge list [a, b] makes three groups: < a, a to b, >= b.

    Every clip falls into a group, since the outer ones are open.
    """

    aspect: tuple[float, ...] = Field((), description="group edges of the aspect ratio, width / height")
    short_side_px: tuple[int, ...] = Field((), description="group edges of the short side, pixels")
    frames: tuple[int, ...] = Field((), description="group edges of the clip length, frames")


class ShardConfig(Settings):
    """Packing of samples into shards."""

    REVISION: ClassVar[int] = 0

    max_shard_mb: float = Field(
        256.0, gt=0, description="maximum size of the clips in a shard, megabytes (10^6 bytes)"
    )
    bins: BinConfig = BinConfig()
    val_share: float = Field(
        0.0, ge=0, lt=1, description="share of sources whose clips form the validation split, 0 to 1"
    )


class RunConfig(Settings):
    """Execution: runner, workers and their resources. No key of this section changes the bytes of the dataset."""

    READ_WITH: ClassVar = {"attempts": ("isolate", (True,))} | dict.fromkeys(
        (
            "worker_memory_mb",
            "model_cpus",
            "shots_gpus",
            "embed_gpus",
            "caption_gpus",
            "text_embed_gpus",
            "wait_for_cpus",
            "wait_for_gpus",
            "wait_s",
        ),
        ("runner", ("ray",)),
    )

    runner: Literal["ray", "sequential"] = Field(
        "ray",
        description="ray: Ray Data on this machine or on the cluster of RAY_ADDRESS; sequential: this process alone",
    )
    isolate: bool = Field(
        True, description="decode in a child process, so that a decoder crash fails only its own source"
    )
    attempts: int = Field(
        3, ge=1, le=10, description="worker processes that a source may crash before it is quarantined"
    )
    max_source_s: float = Field(
        6 * 3600.0, gt=0, description="time after which a worker without a result counts as hung, seconds"
    )
    part_s: float = Field(
        900.0,
        ge=1,
        description="length of parts, seconds. The parts of a long source run in parallel and resume independently,"
        " to the same bytes. max_source_s holds for each part",
    )
    worker_memory_mb: int = Field(
        1536, gt=0, description="memory that Ray reserves for each cutting worker, megabytes"
    )
    model_cpus: float = Field(1.0, ge=0, description="CPUs that Ray reserves for each worker with a model")
    shots_gpus: float = Field(
        0.1,
        ge=0,
        description="share of a GPU for each cutting worker, if shots.device runs a network on the GPU",
    )
    embed_gpus: float = Field(
        0.25, ge=0, description="share of a GPU for each embedding worker, if the cluster has GPUs"
    )
    caption_gpus: float = Field(
        1.0, ge=0, description="GPUs for each captioning worker, if the cluster has GPUs"
    )
    text_embed_gpus: float = Field(
        0.25, ge=0, description="share of a GPU for each text embedding worker, if the cluster has GPUs"
    )
    caption_while_cutting: bool = Field(
        False,
        description="caption clips as they are cut, duplicates too, instead of kept clips once all sources are cut; for"
        " clusters whose GPUs would wait",
    )
    wait_for_cpus: int = Field(
        0, ge=0, description="CPUs that a growing Ray cluster must have before any work; 0: begin at once"
    )
    wait_for_gpus: int = Field(
        0,
        ge=0,
        description="GPUs that a growing Ray cluster must have before any work; 0: begin at once. Models run on GPUs"
        " only if there are some by then",
    )
    wait_s: float = Field(
        1800.0, gt=0, description="longest wait for wait_for_cpus and wait_for_gpus, seconds"
    )
    keep_rejected: bool = Field(
        True,
        description="keep filtered clips in .ledger, so that a changed threshold needs no decoding",
    )


class SourceStageConfig(BaseModel, frozen=True, extra="forbid"):
    """Settings that decide the clips of a source, their scores and their fingerprints.

    Attributes:
        REVISION: Version of the algorithm; raise it when the same configuration gives other bytes, so that
            the ledger notices.
    """

    REVISION: ClassVar = 107

    probe: ProbeConfig = ProbeConfig()
    shots: ShotConfig = ShotConfig()
    stitch: StitchConfig = StitchConfig()
    spans: SpanConfig = SpanConfig()
    cut: CutConfig = CutConfig()
    scores: ScoreConfig = ScoreConfig()


class CurateConfig(SourceStageConfig, frozen=True, extra="forbid"):
    """One model per stage, in pipeline order."""

    ADDED: ClassVar = frozenset({"recipe"})

    READ_WITH: ClassVar = {
        "stitch.enabled": ("shots.detector", Except("fixed")),
        "dedup.semantic.enabled": ("embed.backend", Except("none", "perceptual")),
        "dedup.balance.max_clips": ("embed.backend", Except("none", "perceptual")),
        "captions.match": ("embed.backend", ("open_clip",)),
        "run.shots_gpus": ("shots.device", Except("cpu")),
        "run.embed_gpus": ("embed.backend", ("open_clip",)),
        "run.caption_gpus": ("captions.model", SET),
        "run.text_embed_gpus": ("text_embed.model", SET),
        "run.caption_while_cutting": ("captions.model", SET),
    }

    stages: Annotated[
        dict[str, SerializeAsAny[StageConfig]],
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "object"}}),
    ] = Field({}, description="stages of your own by name, in the order in which they run")
    filters: FilterConfig = FilterConfig()
    embed: EmbedConfig = EmbedConfig()
    aesthetic: AestheticConfig = AestheticConfig()
    captions: CaptionConfig = CaptionConfig()
    text_embed: TextEmbedConfig = TextEmbedConfig()
    dedup: DedupConfig = DedupConfig()
    shard: ShardConfig = ShardConfig()
    storage: StorageConfig = StorageConfig()
    run: RunConfig = RunConfig()
    recipe: dict[str, Any] = Field(
        {},
        description="recipe that the keys above were begun with, written by --recipe: its name, its digest and its"
        " published filters, for the report; no key of it decides anything",
    )

    @field_validator("stages", mode="before")
    @classmethod
    def _stages(cls, values: Any) -> Any:
        return configure_stages(values)

    @field_validator("filters", mode="after")
    @classmethod
    def _thresholds(cls, filters: FilterConfig, known: ValidationInfo) -> FilterConfig:
        if "stages" in known.data:
            check_thresholds(filters, known.data["stages"])
        return filters

    @field_validator("embed", mode="after")
    @classmethod
    def _vectors(cls, embed: EmbedConfig, known: ValidationInfo) -> EmbedConfig:
        if embed.backend.startswith(STAGES) and "stages" in known.data:
            check_embeds(embed.backend.removeprefix(STAGES), known.data["stages"])
        return embed

    def content(self) -> dict[str, Any]:
        """Return the settings that decide the bytes of the dataset, without storage and execution."""
        left_out = ("storage", "run") if self.stages else ("storage", "run", "stages")
        return {name: values for name, values in content_of(self).items() if name not in left_out}

    def revisions(self) -> dict[str, int]:
        """Return the revisions of the code of stages that are no entries of the ledger, without those that are 0."""
        found = {"dedup": self.dedup.REVISION, "shard": self.shard.REVISION}
        return {name: number for name, number in found.items() if number}

    def source_stage(self) -> SourceStageConfig:
        """Return the settings that decide what a source becomes."""
        return SourceStageConfig(**{name: getattr(self, name) for name in SourceStageConfig.model_fields})


def content_of(config: BaseModel) -> dict[str, Any]:
    """Return a configuration as JSON values, without fields that change no result.

    These are the fields in its ``SPEED_ONLY``, and those in its ``ADDED`` at their defaults: earlier versions did not
    have them, and datasets of theirs stay as they are.
    """
    added = {name for name in getattr(config, "ADDED", ()) if getattr(config, name) == _default(config, name)}
    values = config.model_dump(mode="json", exclude=set(getattr(config, "SPEED_ONLY", ())) | added)
    for name in values:
        if isinstance(part := getattr(config, name), BaseModel):
            values[name] = content_of(part)
        elif isinstance(part, dict):
            values[name] |= {key: content_of(own) for key, own in part.items() if isinstance(own, BaseModel)}
    return values


def _default(config: BaseModel, name: str) -> Any:
    return type(config).model_fields[name].default


def config_digest(*configs: BaseModel, models: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a short digest of configurations, of the contents of the models they name, and of the code's revisions.

    A configuration's ``REVISION`` is the version of the code that it steers. It is raised when the same configuration
    gives other results; 0 is that of the time before revisions, and leaves no trace.
    """
    return _digest([_at_revision(config, _revision(config)) for config in configs], models)


def earlier_stage_digests(
    *configs: BaseModel, models: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the digests that earlier revisions of the code gave configurations, the newest first."""
    every = itertools.product(*(range(_revision(config), -1, -1) for config in configs))
    return tuple(
        _digest([_at_revision(*one) for one in zip(configs, numbers, strict=True)], models)
        for numbers in itertools.islice(every, 1, None)
    )


def earlier_digests(config: SourceStageConfig) -> dict[str, int]:
    """Return the digests that earlier revisions of the code gave a configuration, with the revision, the newest first.

    Values in the fields of today are meant: one that an earlier revision did not have, and that is not in ``ADDED``,
    makes another configuration.
    """
    return {
        _digest([_at_revision(config, number)], {}): number for number in range(config.REVISION - 1, 0, -1)
    }


def _revision(config: BaseModel) -> int:
    return getattr(config, "REVISION", 0)


def _at_revision(config: BaseModel, revision: int) -> dict[str, Any]:
    return content_of(config) | ({"revision": revision} if revision else {})


def _digest(values: list[dict[str, Any]], models: Mapping[str, str]) -> str:
    values = [*values, dict(models)] if models else values
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
