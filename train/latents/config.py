"""What `reelweave latents` stores, and the prices by which it chooses; importing it loads no torch."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    model_validator,
)

BucketName = Annotated[str, StringConstraints(pattern=r"^\d+x\d+x\d+$")]


class LatentsConfig(BaseModel, frozen=True, extra="forbid"):
    """What is stored, when that pays, and who computes it. Prices are in any currency, the same for all."""

    SPEED_ONLY: ClassVar = frozenset({"runner", "workers", "measurements"})

    dtype: Literal["float16", "float32"] = Field(
        "float16", description="of latents and contexts; float16 keeps 11 bits and nothing above 65504"
    )
    views: PositiveInt = Field(
        1,
        description="choices of frames that are stored of a clip that is longer than its bucket; training takes them in"
        " turn, one per pass, where on the fly it draws another for every pass",
    )
    context: bool = Field(
        True, description="store the contexts of captions, where the text encoder is frozen"
    )
    clips: bool = Field(False, description="carry the clips of stored buckets, too")
    on_the_fly: tuple[BucketName, ...] = Field(
        (), description="buckets that are not stored whatever they cost, as FRAMESxHEIGHTxWIDTH"
    )
    epochs: PositiveFloat | None = Field(
        None, description="passes over the dataset that are planned, in all runs that will use it"
    )
    device_hour_price: NonNegativeFloat | None = Field(
        None, description="of one device for an hour; null: every bucket is stored"
    )
    gib_month_price: NonNegativeFloat = Field(0.0, description="of keeping 1 GiB for a month")
    gib_read_price: NonNegativeFloat = Field(0.0, description="of reading 1 GiB, requests and transfer")
    months: PositiveFloat = Field(1.0, description="how long the version is kept")
    max_shard_mb: PositiveFloat = Field(
        256.0, description="size of a shard, about; what a kill costs is the shards that are being written"
    )
    measurements: PositiveInt = Field(
        2, description="of the seconds of encoding, per bucket; their median counts"
    )
    runner: Literal["ray", "sequential"] = Field(
        "ray", description="ray: on all machines of the cluster, or on this one; sequential: in this process"
    )
    workers: PositiveInt | None = Field(
        None, description="at a time; null: one per GPU, or as many as the processors have room for"
    )
    threads: PositiveInt = Field(1, description="processors of a worker; on a CPU they may change last bits")

    @model_validator(mode="after")
    def _prices_need_epochs(self) -> Self:
        if self.device_hour_price is not None and self.epochs is None:
            raise ValueError(
                "device_hour_price needs epochs: what is computed once pays by how often it is read"
            )
        return self
