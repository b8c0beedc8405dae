"""Configuration of a video stream."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from reelweave.loader.blend.curriculum import Curriculum
from reelweave.loader.blend.selection.config import GroupSplit, Quota, Selection, Where
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.plan.policy import Policy, Regime, StepDenominator
from reelweave.loader.plan.shuffle import SORTED, Shuffle
from reelweave.loader.read.cache import CacheConfig
from reelweave.loader.read.decode import DecoderName
from reelweave.loader.settings import Settings


class StreamConfig(Settings):
    """Samples to stream, their order, and the depth of prefetching."""

    buckets: BucketConfig = Field(description="allowed shapes and budgets")
    seed: int = Field(default=0, ge=0, lt=2**64, description="seed of sample order and frame choice")
    readers: PositiveInt = Field(default=16, description="concurrent read requests")
    read_ahead_mib: PositiveInt = Field(default=256, description="maximum encoded MiB read ahead of decoding")
    cache: CacheConfig | None = Field(
        default=None,
        description="disk cache for samples read from S3, shared by the ranks of a machine; null: no cache",
    )
    workers: PositiveInt = Field(default=4, description="decoding threads")
    latents: bool = Field(
        default=True,
        description="read stored latents and contexts where they exist; false: read clips",
    )
    decode: bool = Field(
        default=True, description="decode clips to pixels; false: microbatches hold encoded clips"
    )
    decoder: DecoderName = Field(
        default="pyav", description="video decoder; decord, if installed, decodes upright MP4 only"
    )
    prefetch: PositiveInt = Field(default=2, description="microbatches decoded ahead of the current one")
    pin_memory: bool = Field(
        default=True,
        description="page-locked memory for pixels where there is a GPU, for copies that nothing waits for",
    )
    microbatches: PositiveInt = Field(
        default=1,
        description="mean microbatches per rank and optimizer step; 1 leaves nothing to balance, 4 or more balance wide"
        " mixtures",
    )
    policy: Policy = Field(
        default="balanced",
        description="assignment of microbatches to ranks: balanced equalizes predicted cost; the others are baselines",
    )
    regime: Regime = Field(
        default="step",
        description="synchronization of ranks. step: once per optimizer step (DDP); slot: after every microbatch"
        " (FSDP, pipelines); pack: mixed shapes packed into sequences of equal cost",
    )
    shuffle: Shuffle = Field(default=SORTED, description="shuffle of samples within their buckets")
    node_folder: Path | None = Field(
        default=None,
        description="folder on a local disk or in memory, such as /dev/shm. One rank of a machine stores plans there"
        " for all; null: each rank plans for itself",
    )
    lookahead: PositiveInt = Field(
        default=4, le=1024, description="`regime: slot`: window in steps within which microbatches may move"
    )
    denominator: StepDenominator = Field(
        default="epoch",
        description="divisor of `batch.weight`. epoch: mean samples of the epoch's steps, so that all samples count"
        " alike; step: samples of the step, so that those of large steps count less. In `reelweave train`"
        " train.denominator decides",
    )
    curriculum: Curriculum | None = Field(
        default=None, description="stages by step: other blend weights, frames or sizes; null: none"
    )
    where: Where | None = Field(
        default=None,
        description="condition on the samples, such as aesthetic > 4.5 and licence == 'cc0'; others are not drawn;"
        " null: all are",
    )
    split: GroupSplit | None = Field(
        default=None,
        description="part of a split by groups, such as sources, that is drawn; null: all samples",
    )
    quota: Quota | None = Field(
        default=None, description="most samples of a group, such as a source, that are drawn; null: no limit"
    )
    epochs: PositiveInt | None = Field(default=None, description="passes over the dataset; null: no end")
    max_bad: NonNegativeInt = Field(default=8, description="bad samples that are always tolerated")
    max_bad_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of samples, beyond max_bad, that may be bad before the run stops",
    )

    captions: dict[str, Annotated[float, Field(ge=0, le=1e6)]] = Field(
        default={},
        description="weights of captions by name, of which one is drawn for a sample and pass: default is its caption,"
        " others are names in captions.parquet, such as written for those of a list; {}: its caption",
    )
    caption_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of samples without a caption, for training loops of your own; `reelweave train` has"
        " train.objective.caption_dropout",
    )
    exclude: Path | None = Field(
        default=None,
        description="file of keys, one a line, of samples that are not read; another list may go on with a state",
    )
    max_unassigned_share: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of samples that no bucket takes, above which a stream is refused; null: it is only told",
    )

    @property
    def selection(self) -> Selection:
        """Choice among the samples of the source."""
        return Selection.of(self.where, self.split, self.quota, "stream")

    @model_validator(mode="after")
    def _some_caption_is_drawn(self) -> Self:
        if self.captions and not any(self.captions.values()):
            raise ValueError(
                f"captions has weights of 0 alone ({', '.join(self.captions)}); raise one of them"
            )
        return self

    @model_validator(mode="after")
    def _packs_have_policies_of_their_own(self) -> Self:
        if self.regime == "pack" and self.policy not in ("balanced", "equal_token"):
            raise ValueError(
                f"policy {self.policy} makes no packs; with regime pack it is balanced or equal_token"
            )
        return self
