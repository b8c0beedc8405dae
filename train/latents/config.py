"""Configuration of stored latents: contents, workers, and the prices that decide what to store."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from reelweave.loader.settings import SET, Settings

BucketName = Annotated[str, StringConstraints(pattern=r"^\d+x\d+x\d+$")]


class LatentsConfig(Settings):
    """Stored latents: contents, prices and workers. Prices are in any one currency."""

    SPEED_ONLY: ClassVar = frozenset({"runner", "workers", "measurements"})
    READ_WITH: ClassVar = dict.fromkeys(
        ("gib_month_price", "gib_read_price", "months"), ("device_hour_price", SET)
    )

    dtype: Literal["float16", "float32"] = Field(
        "float16",
        description="dtype of latents and contexts; float16 has 11 significant bits and a maximum of 65504",
    )
    views: PositiveInt = Field(
        1,
        description="frame selections stored per clip longer than its bucket. Training uses them in turn, one per"
        " pass, while encoding on the fly draws a new one",
    )
    context: bool = Field(True, description="store caption contexts of a frozen text encoder")
    clips: bool = Field(False, description="store the clips of stored buckets, too")
    on_the_fly: tuple[BucketName, ...] = Field(
        (), description="buckets that are never stored, as FRAMESxHEIGHTxWIDTH"
    )
    epochs: PositiveFloat | None = Field(
        None, description="planned passes over the dataset, in all runs that will use it"
    )
    device_hour_price: NonNegativeFloat | None = Field(
        None, description="price of one device-hour; null: store every bucket"
    )
    gib_month_price: NonNegativeFloat = Field(0.0, description="price of keeping 1 GiB for a month")
    gib_read_price: NonNegativeFloat = Field(
        0.0, description="price of reading 1 GiB, requests and transfer together"
    )
    months: PositiveFloat = Field(1.0, description="months that the version is kept")
    max_shard_mb: PositiveFloat = Field(
        256.0, description="approximate size of a shard; a kill loses the shards in progress"
    )
    measurements: PositiveInt = Field(2, description="timed encodings per bucket; the median counts")
    runner: Literal["ray", "sequential"] = Field(
        "ray", description="ray: on all machines of the cluster, or on this one; sequential: in this process"
    )
    workers: PositiveInt | None = Field(
        None, description="concurrent workers; null: one per GPU, or as many as the CPUs allow"
    )
    threads: PositiveInt = Field(1, description="CPU threads per worker; on a CPU they may change last bits")

    @model_validator(mode="after")
    def _prices_need_epochs(self) -> Self:
        if self.device_hour_price is not None and self.epochs is None:
            raise ValueError(
                "device_hour_price needs epochs: what is computed once pays by how often it is read"
            )
        return self
