"""What is streamed, in which order, and how far ahead."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, NonNegativeInt, PositiveInt, model_validator

from loader.blend.curriculum import Curriculum
from loader.buckets.buckets import BucketConfig
from loader.plan.policy import Policy, Regime
from loader.plan.shuffle import SORTED, Shuffle
from loader.read.cache import CacheConfig
from loader.read.decode import DecoderName


class StreamConfig(BaseModel, frozen=True, extra="forbid"):
    """What is streamed, and how far ahead."""

    buckets: BucketConfig = Field(description="allowed shapes and budgets")
    seed: int = Field(default=0, ge=0, lt=2**64, description="fixes the order and the frames of every epoch")
    readers: PositiveInt = Field(default=16, description="requests in flight")
    read_ahead_mib: PositiveInt = Field(
        default=256, description="encoded bytes read ahead of decoding, at most"
    )
    cache: CacheConfig | None = Field(
        default=None,
        description="local disk that keeps samples read from S3; shared by the ranks of a machine",
    )
    workers: PositiveInt = Field(default=4, description="decoding threads")
    latents: bool = Field(
        default=True,
        description="read latents and contexts where they are stored; false: clips, if they are there",
    )
    decode: bool = Field(default=True, description="false: microbatches hold encoded clips and no pixels")
    decoder: DecoderName = Field(
        default="pyav", description="pyav; decord decodes upright MP4 where it is installed"
    )
    prefetch: PositiveInt = Field(default=2, description="microbatches decoded ahead of the one in use")
    pin_memory: bool = Field(default=False, description="pixels in page-locked memory, for copies to a GPU")
    microbatches: PositiveInt = Field(
        default=1,
        description="of a rank in an optimizer step, on average; 1 leaves nothing to balance, 4 and more balance wide"
        " mixtures",
    )
    policy: Policy = Field(
        default="balanced",
        description="balanced: equal work for all ranks; dual_constraint, equal_token, same_bucket: its rivals",
    )
    regime: Regime = Field(
        default="step",
        description="when ranks wait for each other: once a step (DDP), or in every slot (FSDP, pipelines); pack:"
        " samples of any shapes in sequences of equal cost",
    )
    shuffle: Shuffle = Field(default=SORTED, description="how samples are shuffled within their buckets")
    node_folder: Path | None = Field(
        default=None,
        description="folder on a disk or in the memory of this machine, as /dev/shm, where its ranks share plans that"
        " one of them makes; null: each makes its own",
    )
    lookahead: PositiveInt = Field(
        default=4, le=1024, description="the slot regime moves a microbatch by fewer than this many steps"
    )
    curriculum: Curriculum | None = Field(
        default=None, description="stages by step: other weights of the blend, other frames or sizes"
    )
    epochs: PositiveInt | None = Field(default=None, description="passes over the dataset; null is for ever")
    max_bad: NonNegativeInt = Field(default=8, description="bad samples that never stop the run")
    max_bad_share: float = Field(
        default=0.01, ge=0, le=1, description="share of the samples beyond max_bad that may be bad"
    )

    @model_validator(mode="after")
    def _packs_have_policies_of_their_own(self) -> Self:
        if self.regime == "pack" and self.policy not in ("balanced", "equal_token"):
            raise ValueError(
                f"policy {self.policy} makes no packs; with regime pack it is balanced or equal_token"
            )
        return self
