"""What the VAE's encoder takes when its work is spread over GPUs (Arachne, section IV-B)."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from loader.base.arrays import Floats, Places
from loader.errors import UsageError
from train.cascade.costs.trees import BoostedTrees
from train.models.encoders.tile_grid import TileGrid


class VAECost(BaseModel, frozen=True, extra="forbid"):
    """Tiles of equal size, dealt out to the GPUs in turn, the last of which to finish counts."""

    kind: Literal["tiles"] = "tiles"
    tile_s: float = Field(ge=0, description="seconds of one GPU for a tile")
    tile_frames: int = Field(ge=1, description="frames of a tile")
    tiles_per_picture: int = Field(ge=1, description="tiles of a picture")
    most: int = Field(8, ge=1, description="GPUs that it is spread over, at most")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, its weights included")

    def seconds(self, batch_S: Places, size_S3: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]; infinite above ``most``, and where there are no frames.

        Args:
            batch_S: B.
            size_S3: frames, height and width of a video; height and width play no part.
            degrees_K: numbers of GPUs.
        """
        frames_S = size_S3[:, 0]
        tiles_S1 = (batch_S * -(-frames_S // self.tile_frames) * self.tiles_per_picture)[:, None]
        seconds_SK = -(-tiles_S1 // degrees_K) * self.tile_s
        runs_SK = (degrees_K <= self.most) & (frames_S > 0)[:, None]
        return np.where(runs_SK, seconds_SK, math.inf)

    def bytes_of_a_gpu(self, batch_S: Places, _: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]; arguments as of `seconds`."""
        return np.full((len(batch_S), len(degrees_K)), self.memory_bytes)


class UnitSeconds(BaseModel, frozen=True, extra="forbid"):
    """Seconds of one GPU for a video, or a tile of one: a line in its volume, and what trees correct of it."""

    fixed_s: float = Field(ge=0, description="of each, whatever its size")
    volume_s: float = Field(ge=0, description="of a pixel of a frame")
    pictures: tuple[tuple[int, int], ...] = Field(
        (), max_length=1024, description="[height, width] that the trees know, in the order of their features"
    )
    residual: BoostedTrees | None = Field(
        None,
        description="what a unit takes above the line, relative to it, by its frames and by which picture it is",
    )

    @model_validator(mode="after")
    def _trees_know_the_pictures(self) -> "UnitSeconds":
        if self.residual and self.residual.features != 1 + len(self.pictures):
            raise ValueError(
                f"residual has {self.residual.features} features: they are the frames and the {len(self.pictures)}"
                " pictures"
            )
        return self

    def features(self, size_N3: Places) -> Floats:
        """Frames, and 1 where the picture is the one, float64 [N, 1 + pictures]."""
        pictures_P2 = np.array(self.pictures, np.int64).reshape(-1, 2)
        known_NP = (size_N3[:, None, 1:] == pictures_P2).all(axis=2)
        return np.concatenate([size_N3[:, :1], known_NP], axis=1).astype(np.float64)

    def linear(self, size_N3: Places) -> Floats:
        """Without the trees, float64 [N]."""
        return np.asarray(self.fixed_s + self.volume_s * size_N3.prod(axis=1), np.float64)

    def seconds(self, size_N3: Places) -> Floats:
        """Of units of these frames, heights and widths, float64 [N]."""
        linear_N = self.linear(size_N3)
        if self.residual is None:
            return linear_N
        return linear_N * np.maximum(1 + self.residual.predict(self.features(size_N3)), 0.0)


class FittedVAECost(BaseModel, frozen=True, extra="forbid"):
    """Units of work, dealt out to the GPUs in turn, the last of which to finish counts.

    A unit is a video of the microbatch or, where the VAE cuts videos, a tile of one.
    """

    kind: Literal["fitted"] = "fitted"
    call_s: float = Field(0.0, ge=0, description="seconds of each GPU, however many units it has")
    unit: UnitSeconds
    grid: TileGrid | None = Field(None, description="how videos are cut; null: they are encoded whole")
    most: int = Field(8, ge=1, description="GPUs that it is spread over, at most")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, weights of all modules included")
    volume_bytes: float = Field(
        0.0, ge=0, description="bytes more for a pixel of a frame that is being encoded"
    )
    at_once: bool = Field(True, description="a GPU encodes its units together; false: one after the other")

    def seconds(self, batch_S: Places, size_S3: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]; infinite above ``most``, and where there are no frames.

        Args:
            batch_S: B.
            size_S3: frames, height and width of a video.
            degrees_K: numbers of GPUs.

        Raises:
            UsageError: there are videos of unknown height and width.
        """
        found_SK = np.full((len(batch_S), len(degrees_K)), math.inf)
        units = self._units(batch_S, size_S3)
        if units:
            # Trees are slow, and units of few sizes.
            distinct, place_N = np.unique(np.concatenate(list(units.values())), axis=0, return_inverse=True)
            seconds_N = self.unit.seconds(distinct)[place_N.reshape(-1)]
            ends = np.cumsum([len(size_N3) for size_N3 in units.values()])
            for sample, own_N in zip(units, np.split(seconds_N, ends[:-1]), strict=True):
                found_SK[sample] = self.call_s + slowest(own_N, degrees_K)
        found_SK[:, degrees_K > self.most] = math.inf
        return found_SK

    def bytes_of_a_gpu(self, batch_S: Places, size_S3: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]; arguments as of `seconds`."""
        found_SK = np.full((len(batch_S), len(degrees_K)), self.memory_bytes)
        for sample, size_N3 in self._units(batch_S, size_S3).items():
            volume_N = size_N3.prod(axis=1).astype(np.float64)
            most_K = slowest(volume_N, degrees_K) if self.at_once else volume_N.max()
            found_SK[sample] += self.volume_bytes * most_K
        return found_SK

    def _units(self, batch_S: Places, size_S3: Places) -> dict[int, Places]:
        """Frames, height and width of the units of each microbatch that has videos, by its number."""
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


def units_of(batch: int, size: Sequence[int], grid: TileGrid | None) -> Places:
    """Frames, height and width of the units of a microbatch, video after video, int64 [units, 3]."""
    one_N3 = np.array([size], np.int64) if grid is None else grid.tiles(*size)
    return np.tile(one_N3, (batch, 1))


def slowest(of_units_N: Floats, degrees_K: Places) -> Floats:
    """The most that a GPU has when units are dealt out to so many in turn, float64 [K]."""
    found_K = np.empty(len(degrees_K))
    for number, degree in enumerate(degrees_K.tolist()):
        rounds = -(-len(of_units_N) // degree)
        dealt = np.zeros(rounds * degree)
        dealt[: len(of_units_N)] = of_units_N
        found_K[number] = dealt.reshape(rounds, degree).sum(axis=0).max()
    return found_K


def _kind(value: object) -> str:
    """Cost models without a kind count tiles."""
    return (
        str(value.get("kind", "tiles")) if isinstance(value, dict) else str(getattr(value, "kind", "tiles"))
    )


AnyVAECost = Annotated[
    Annotated[VAECost, Tag("tiles")] | Annotated[FittedVAECost, Tag("fitted")], Discriminator(_kind)
]
"""Told apart by `kind`."""
