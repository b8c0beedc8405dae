"""What a cascade takes with a degree: Arachne's cost models of the DiT (Eqs. 8, 9); the VAE's are in `vae_cost`."""

from dataclasses import dataclass, field

import numpy as np
from pydantic import BaseModel, Field

from loader.base.arrays import Floats, Places
from loader.buckets.tokens import Compression
from train.cascade.costs.vae_cost import AnyVAECost
from train.cascade.problem import Module, Problem


class Links(BaseModel, frozen=True, extra="forbid"):
    """What a GPU sends per second while a group exchanges, in bytes."""

    gpus_per_node: int = Field(8, ge=1, description="GPUs of a node")
    node_bytes_per_s: float = Field(300e9, gt=0, description="where a group lies within a node")
    network_bytes_per_s: float = Field(45e9, gt=0, description="where it does not")
    balanced: bool = Field(
        False,
        description="groups lie evenly on as few nodes as hold them, so that a GPU sends over the network only what is"
        " for other nodes; false: all of it, as in the paper",
    )

    def bytes_per_s(self, degrees_K: Places) -> Floats:
        """Of groups of these sizes, float64 [K]."""
        crossing_K = self.crossing(degrees_K)
        with np.errstate(divide="ignore"):
            network_K = np.where(crossing_K > 0, self.network_bytes_per_s / crossing_K, np.inf)
            node_K = np.where(crossing_K < 1, self.node_bytes_per_s / (1 - crossing_K), np.inf)
        return np.minimum(network_K, node_K)  # both at once

    def crossing(self, degrees_K: Places) -> Floats:
        """Share of what a GPU sends that leaves its node, float64 [K]."""
        if not self.balanced:
            return (degrees_K > self.gpus_per_node).astype(np.float64)
        nodes_K = -(-degrees_K // self.gpus_per_node)
        return (degrees_K - degrees_K // nodes_K) / np.maximum(degrees_K - 1, 1)


class DiTCost(BaseModel, frozen=True, extra="forbid"):
    """The DiT's training step for B samples of S tokens on k GPUs.

    Seconds (Eq. 9): ``(linear_s B S + square_s B S^2) / k + sent / bandwidth(k)``; bytes of a GPU (Eq. 8):
    ``states + B S token_bytes / k``. With Ulysses a token's ``exchanged_bytes`` are divided over k ranks, each of which
    sends all of its share but what it keeps, so ``sent = B S exchanged_bytes (k - 1) / k^2``. Beside the paper's terms
    there is what no degree divides: ``fixed_s``, and handed-over tensors, which lie whole on each GPU.
    """

    fixed_s: float = Field(0.0, ge=0, description="seconds of a microbatch, whatever its size and degree")
    linear_s: float = Field(ge=0, description="seconds of one GPU per token: matrix products")
    square_s: float = Field(ge=0, description="seconds of one GPU per token and token: attention")
    exchanged_bytes: float = Field(
        ge=0,
        description="bytes of a token that change ranks, forward, backward and in checkpoints' recomputation",
    )
    states_bytes: float = Field(0.0, ge=0, description="weights, gradients and optimizer state on each GPU")
    token_bytes: float = Field(ge=0, description="activations of a token")
    handed_token_bytes: float = Field(0.0, ge=0, description="latents of a token, whole on each GPU")
    handed_sample_bytes: float = Field(0.0, ge=0, description="context of a caption, whole on each GPU")

    def seconds(self, batch_S: Places, length_S: Places, degrees_K: Places, links: Links) -> Floats:
        """Float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        computed_S1 = tokens_S1 * (self.linear_s + self.square_s * length_S.astype(float)[:, None])
        sent_SK = tokens_S1 * self.exchanged_bytes * (degrees_K - 1) / degrees_K**2
        return np.asarray(self.fixed_s + computed_S1 / degrees_K + sent_SK / links.bytes_per_s(degrees_K))

    def bytes_of_a_gpu(self, batch_S: Places, length_S: Places, degrees_K: Places) -> Floats:
        """Float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        handed_S1 = tokens_S1 * self.handed_token_bytes + batch_S[:, None] * self.handed_sample_bytes
        return np.asarray(self.states_bytes + handed_S1 + tokens_S1 * self.token_bytes / degrees_K)


class TextCost(BaseModel, frozen=True, extra="forbid"):
    """The text encoder, on one GPU."""

    fixed_s: float = Field(0.0, ge=0, description="seconds of a microbatch, whatever its size")
    sample_s: float = Field(ge=0, description="seconds for a caption")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, its weights included")

    def seconds(self, batch_S: Places) -> Floats:
        """Float64 [S]."""
        return np.asarray(self.fixed_s + self.sample_s * batch_S)


@dataclass(frozen=True, eq=False)
class Samples:
    """What is to be trained on in an iteration: microbatches of B videos of one shape, int64 [S] each.

    Attributes:
        batch: B.
        frames: of the videos; 0 where their latents are cached.
        length: S, their tokens.
        height: in pixels; 0 where it is not known.
        width: in pixels; 0 where it is not known.
    """

    batch: Places
    frames: Places
    length: Places
    height: Places = field(default_factory=lambda: np.zeros(1, np.int64))
    width: Places = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def size_S3(self) -> Places:
        """Frames, height and width, int64 [S, 3]."""
        return np.stack(np.broadcast_arrays(self.frames, self.height, self.width), axis=1)


class HeldOutError(BaseModel, frozen=True, extra="forbid"):
    """|predicted / measured - 1| of a module's times, of shapes that a fit has not seen."""

    mean: float = Field(ge=0)
    max: float = Field(ge=0)
    rows: int = Field(ge=1, description="measured times that were held out")


class CostModel(BaseModel, frozen=True, extra="forbid"):
    """The costs of all modules, as they are fitted and kept."""

    dit: DiTCost
    vae: AnyVAECost | None = Field(description="null: latents are cached")
    text: TextCost | None = Field(description="null: contexts are cached")
    links: Links = Links()
    compression: Compression | None = Field(None, description="pixels of a token; null: HunyuanVideo's")
    text_tokens: int = Field(0, ge=0, description="that S counts for a caption")
    held_out: dict[str, HeldOutError] = Field({}, description="of each module, where they are fitted")

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
            videos = samples.batch, samples.size_S3, degrees_K
            seconds_SMK[:, Module.VAE] = self.vae.seconds(*videos)
            memory_SMK[:, Module.VAE] = self.vae.bytes_of_a_gpu(*videos)
        if self.text:
            seconds_SMK[:, Module.TEXT, degrees_K == 1] = self.text.seconds(samples.batch)[:, None]
            memory_SMK[:, Module.TEXT] = self.text.memory_bytes
        return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, memory_bytes)
