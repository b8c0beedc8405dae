"""What a cascade takes with a degree: Arachne's cost models of the DiT (Eqs. 8, 9) and of the VAE (section IV-B)."""

import math
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, Field

from loader.arrays import Floats, Places
from train.cascade.problem import Module, Problem


class Links(BaseModel, frozen=True, extra="forbid"):
    """What a GPU sends per second while a group exchanges, in bytes."""

    gpus_per_node: int = Field(8, ge=1, description="GPUs of a node")
    node_bytes_per_s: float = Field(300e9, gt=0, description="where a group lies within a node")
    network_bytes_per_s: float = Field(45e9, gt=0, description="where it does not")

    def bytes_per_s(self, degrees_K: Places) -> Floats:
        """Of groups of these sizes, float64 [K]."""
        return np.where(degrees_K <= self.gpus_per_node, self.node_bytes_per_s, self.network_bytes_per_s)


class DiTCost(BaseModel, frozen=True, extra="forbid"):
    """The DiT's training step for B samples of S tokens on k GPUs.

    Seconds (Eq. 9): ``(linear_s B S + square_s B S^2) / k + sent / bandwidth(k)``; bytes of a GPU (Eq. 8):
    ``states + B S token_bytes / k``. With Ulysses a token's ``exchanged_bytes`` are divided over k ranks, each of which
    sends all of its share but what it keeps, so ``sent = B S exchanged_bytes (k - 1) / k^2``.
    """

    linear_s: float = Field(ge=0, description="seconds of one GPU per token: matrix products")
    square_s: float = Field(ge=0, description="seconds of one GPU per token and token: attention")
    exchanged_bytes: float = Field(
        ge=0,
        description="bytes of a token that change ranks, forward, backward and in checkpoints' recomputation",
    )
    states_bytes: float = Field(0.0, ge=0, description="weights, gradients and optimizer state on each GPU")
    token_bytes: float = Field(ge=0, description="activations of a token")

    def seconds(self, batch_S: Places, length_S: Places, degrees_K: Places, links: Links) -> Floats:
        """Float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        computed_S1 = tokens_S1 * (self.linear_s + self.square_s * length_S.astype(float)[:, None])
        sent_SK = tokens_S1 * self.exchanged_bytes * (degrees_K - 1) / degrees_K**2
        return np.asarray(computed_S1 / degrees_K + sent_SK / links.bytes_per_s(degrees_K))

    def bytes_of_a_gpu(self, batch_S: Places, length_S: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        return np.asarray(self.states_bytes + tokens_S1 * self.token_bytes / degrees_K)


class VAECost(BaseModel, frozen=True, extra="forbid"):
    """The VAE's encoder: tiles of equal size, dealt out to the GPUs in turn, the last of which to finish counts."""

    tile_s: float = Field(ge=0, description="seconds of one GPU for a tile")
    tile_frames: int = Field(ge=1, description="frames of a tile")
    tiles_per_picture: int = Field(ge=1, description="tiles of a picture")
    most: int = Field(8, ge=1, description="GPUs that it is spread over, at most")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, its weights included")

    def seconds(self, batch_S: Places, frames_S: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]; infinite above ``most``, and where there are no frames."""
        tiles_S1 = (batch_S * -(-frames_S // self.tile_frames) * self.tiles_per_picture)[:, None]
        seconds_SK = -(-tiles_S1 // degrees_K) * self.tile_s
        runs_SK = (degrees_K <= self.most) & (frames_S > 0)[:, None]
        return np.where(runs_SK, seconds_SK, math.inf)


class TextCost(BaseModel, frozen=True, extra="forbid"):
    """The text encoder, on one GPU."""

    sample_s: float = Field(ge=0, description="seconds for a caption")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, its weights included")


@dataclass(frozen=True, eq=False)
class Samples:
    """What is to be trained on in an iteration: microbatches of B videos of one shape, int64 [S] each.

    Attributes:
        batch: B.
        frames: of the videos; 0 where their latents are cached.
        length: S, their tokens.
    """

    batch: Places
    frames: Places
    length: Places


class CostModel(BaseModel, frozen=True, extra="forbid"):
    """The costs of all modules, as they are fitted and kept."""

    dit: DiTCost
    vae: VAECost | None = Field(description="null: latents are cached")
    text: TextCost | None = Field(description="null: contexts are cached")
    links: Links = Links()

    def problem(self, samples: Samples, gpus: int, degrees: tuple[int, ...], memory_bytes: float) -> Problem:
        """The planning problem of an iteration.

        Args:
            samples: of the iteration.
            gpus: that there are.
            degrees: that the DiT can have (heads and group pool allow); others up to them.
            memory_bytes: of a GPU.

        Raises:
            UsageError: see `Problem`.
        """
        degrees_K = np.array(sorted(degrees), np.int64)
        shape = (len(samples.length), len(Module), len(degrees_K))
        seconds_SMK, memory_SMK = np.full(shape, np.inf), np.zeros(shape)
        seconds_SMK[:, Module.DIT] = self.dit.seconds(samples.batch, samples.length, degrees_K, self.links)
        memory_SMK[:, Module.DIT] = self.dit.bytes_of_a_gpu(samples.batch, samples.length, degrees_K)
        if self.vae:
            seconds_SMK[:, Module.VAE] = self.vae.seconds(samples.batch, samples.frames, degrees_K)
            memory_SMK[:, Module.VAE] = self.vae.memory_bytes
        if self.text:
            seconds_SMK[:, Module.TEXT, degrees_K == 1] = self.text.sample_s * samples.batch[:, None]
            memory_SMK[:, Module.TEXT] = self.text.memory_bytes
        return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, memory_bytes)
