"""Cost of the VAE's encoder spread over GPUs (Arachne, section IV-B)."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag, model_validator

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.train.cascade.costs.trees import BoostedTrees
from reelweave.train.models.encoders.tile_grid import TileGrid


class VAECost(Settings):
    """Cost of equal tiles, dealt round-robin to GPUs; the slowest GPU counts."""

    kind: Literal["tiles"] = "tiles"
    tile_s: float = Field(ge=0, description="seconds of one GPU per tile")
    tile_frames: int = Field(ge=1, description="frames per tile")
    tiles_per_picture: int = Field(ge=1, description="spatial tiles per frame")
    most: int = Field(8, ge=1, description="maximum number of GPUs")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, including weights")

    def seconds(self, batch_S: IndexArray, size_S3: IndexArray, degrees_K: IndexArray) -> Floats:
        """Return seconds, float64 [S, K]; infinite above ``most`` and without frames.

        Args:
            batch_S: number of videos, B.
            size_S3: frames, height and width of a video; height and width are unused.
            degrees_K: numbers of GPUs.
        """
        frames_S = size_S3[:, 0]
        tiles_S1 = (batch_S * -(-frames_S // self.tile_frames) * self.tiles_per_picture)[:, None]
        seconds_SK = -(-tiles_S1 // degrees_K) * self.tile_s
        runs_SK = (degrees_K <= self.most) & (frames_S > 0)[:, None]
        return np.where(runs_SK, seconds_SK, math.inf)

    def bytes_of_a_gpu(self, batch_S: IndexArray, _: IndexArray, degrees_K: IndexArray) -> Floats:
        """Return bytes per GPU, float64 [S, K]; arguments as in `seconds`."""
        return np.full((len(batch_S), len(degrees_K)), self.memory_bytes)


class UnitSeconds(Settings):
    """Seconds of one GPU for a video or a tile: linear in its volume, with residuals by trees."""

    fixed_s: float = Field(ge=0, description="constant seconds per unit")
    volume_s: float = Field(ge=0, description="seconds per pixel of a frame")
    pictures: tuple[tuple[int, int], ...] = Field(
        (),
        max_length=1024,
        description="[height, width] of frames known to the trees, in order of their features",
    )
    residual: BoostedTrees | None = Field(
        None,
        description="trees for relative residuals above the line, by frames and by frame size",
    )

    @model_validator(mode="after")
    def _trees_know_the_pictures(self) -> "UnitSeconds":
        if self.residual and self.residual.features != 1 + len(self.pictures):
            raise ValueError(
                f"residual has {self.residual.features} features: they are the frames and the {len(self.pictures)}"
                " pictures"
            )
        return self

    def features(self, size_N3: IndexArray) -> Floats:
        """Return frames and a one-hot encoding of the frame size, float64 [N, 1 + pictures]."""
        pictures_P2 = np.array(self.pictures, np.int64).reshape(-1, 2)
        known_NP = (size_N3[:, None, 1:] == pictures_P2).all(axis=2)
        return np.concatenate([size_N3[:, :1], known_NP], axis=1).astype(np.float64)

    def linear(self, size_N3: IndexArray) -> Floats:
        """Return seconds without the trees, float64 [N]."""
        return np.asarray(self.fixed_s + self.volume_s * size_N3.prod(axis=1), np.float64)

    def seconds(self, size_N3: IndexArray) -> Floats:
        """Return seconds of units of these frames, heights and widths, float64 [N]."""
        linear_N = self.linear(size_N3)
        if self.residual is None:
            return linear_N
        return linear_N * np.maximum(1 + self.residual.predict(self.features(size_N3)), 0.0)


class FittedVAECost(Settings):
    """Cost of units of work, dealt round-robin to GPUs; the slowest GPU counts.

    A unit is a video of the microbatch or, if the VAE tiles videos, one tile.
    """

    kind: Literal["fitted"] = "fitted"
    call_s: float = Field(0.0, ge=0, description="constant seconds of each GPU")
    unit: UnitSeconds
    grid: TileGrid | None = Field(None, description="tile grid; null: videos are encoded whole")
    most: int = Field(8, ge=1, description="maximum number of GPUs")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, including weights of all modules")
    volume_bytes: float = Field(0.0, ge=0, description="bytes per pixel of a frame in the encoder")
    at_once: bool = Field(True, description="a GPU encodes its units together; false: one after the other")

    def seconds(self, batch_S: IndexArray, size_S3: IndexArray, degrees_K: IndexArray) -> Floats:
        """Return seconds, float64 [S, K]; infinite above ``most`` and without frames.

        Args:
            batch_S: number of videos, B.
            size_S3: frames, height and width of a video.
            degrees_K: numbers of GPUs.

        Raises:
            UsageError: a video has unknown height or width.
        """
        found_SK = np.full((len(batch_S), len(degrees_K)), math.inf)
        units = self._units(batch_S, size_S3)
        if units:
            # Trees are slow; units have few distinct sizes.
            distinct, place_N = np.unique(np.concatenate(list(units.values())), axis=0, return_inverse=True)
            seconds_N = self.unit.seconds(distinct)[place_N.reshape(-1)]
            ends = np.cumsum([len(size_N3) for size_N3 in units.values()])
            for sample, own_N in zip(units, np.split(seconds_N, ends[:-1]), strict=True):
                found_SK[sample] = self.call_s + slowest(own_N, degrees_K)
        found_SK[:, degrees_K > self.most] = math.inf
        return found_SK

    def bytes_of_a_gpu(self, batch_S: IndexArray, size_S3: IndexArray, degrees_K: IndexArray) -> Floats:
        """Return bytes per GPU, float64 [S, K]; arguments as in `seconds`."""
        found_SK = np.full((len(batch_S), len(degrees_K)), self.memory_bytes)
        for sample, size_N3 in self._units(batch_S, size_S3).items():
            volume_N = size_N3.prod(axis=1).astype(np.float64)
            most_K = slowest(volume_N, degrees_K) if self.at_once else volume_N.max()
            found_SK[sample] += self.volume_bytes * most_K
        return found_SK

    def _units(self, batch_S: IndexArray, size_S3: IndexArray) -> dict[int, IndexArray]:
        """Return unit sizes (frames, height, width) of each microbatch with videos, by sample number."""
        unknown = np.flatnonzero((size_S3[:, 0] > 0) & (size_S3[:, 1:] == 0).any(axis=1))
        if len(unknown):
            raise UsageError(
                f"the VAE's costs are fitted to frames, heights and widths: tell all three of sample {unknown[0]}"
            )
        return {
            sample: units_of(batch, size, self.grid)
            for sample, (batch, size) in enumerate(zip(batch_S.tolist(), size_S3.tolist(), strict=True))
            if size[0]
        }


def units_of(batch: int, size: Sequence[int], grid: TileGrid | None) -> IndexArray:
    """Return frames, height and width of a microbatch's units, video by video, int64 [units, 3]."""
    one_N3 = np.array([size], np.int64) if grid is None else grid.tiles(*size)
    return np.tile(one_N3, (batch, 1))


def slowest(of_units_N: Floats, degrees_K: IndexArray) -> Floats:
    """Return the largest sum on any GPU when units are dealt round-robin, float64 [K]."""
    found_K = np.empty(len(degrees_K))
    for k, degree in enumerate(degrees_K.tolist()):
        rounds = -(-len(of_units_N) // degree)
        dealt = np.zeros(rounds * degree)
        dealt[: len(of_units_N)] = of_units_N
        found_K[k] = dealt.reshape(rounds, degree).sum(axis=0).max()
    return found_K


def _kind(value: object) -> str:
    """Return the kind; cost models without one use tiles."""
    return (
        str(value.get("kind", "tiles")) if isinstance(value, dict) else str(getattr(value, "kind", "tiles"))
    )


AnyVAECost = Annotated[
    Annotated[VAECost, Tag("tiles")] | Annotated[FittedVAECost, Tag("fitted")], Discriminator(_kind)
]
"""Cost of a VAE; `kind` selects the model."""
