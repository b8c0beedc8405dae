"""Time and memory of cascades by degree: Arachne's cost model of the DiT (Eqs. 8, 9); the VAE's is in `vae_cost`."""

from dataclasses import dataclass, field

import numpy as np
from pydantic import Field

from reelweave.loader.base.arrays import Floats, IndexArray
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.settings import Settings
from reelweave.train.cascade.costs.vae_cost import AnyVAECost
from reelweave.train.cascade.problem import Module, Problem


class Links(Settings):
    """Bandwidths of a GPU during exchanges within a group."""

    gpus_per_node: int = Field(8, ge=1, description="GPUs of a node")
    node_bytes_per_s: float = Field(300e9, gt=0, description="bandwidth of a group within a node")
    network_bytes_per_s: float = Field(45e9, gt=0, description="bandwidth of a group across nodes")
    balanced: bool = Field(
        False,
        description="true: groups lie evenly on as few nodes as possible, so that only traffic for other nodes uses"
        " the network. false: all traffic uses the network, as in the paper",
    )

    def bytes_per_s(self, degrees_K: IndexArray) -> Floats:
        """Return bandwidths for groups of these sizes, float64 [K]."""
        crossing_K = self.crossing(degrees_K)
        with np.errstate(divide="ignore"):
            network_K = np.where(crossing_K > 0, self.network_bytes_per_s / crossing_K, np.inf)
            node_K = np.where(crossing_K < 1, self.node_bytes_per_s / (1 - crossing_K), np.inf)
        return np.minimum(network_K, node_K)  # both transfer concurrently

    def crossing(self, degrees_K: IndexArray) -> Floats:
        """Return the share of a GPU's traffic that leaves its node, float64 [K]."""
        if not self.balanced:
            return (degrees_K > self.gpus_per_node).astype(np.float64)
        nodes_K = -(-degrees_K // self.gpus_per_node)
        return (degrees_K - degrees_K // nodes_K) / np.maximum(degrees_K - 1, 1)


class DiTCost(Settings):
    """Cost of the DiT's training step for B samples of S tokens on k GPUs.

    Seconds (Eq. 9): ``(linear_s B S + square_s B S^2) / k + sent / bandwidth(k)``. Bytes of a GPU (Eq. 8):
    ``states + B S token_bytes / k``. With Ulysses k ranks share a token's ``exchanged_bytes``; each sends all
    of its share but what it keeps: ``sent = B S exchanged_bytes (k - 1) / k^2``. Terms that no degree divides
    are added to the paper's: ``fixed_s``, and handed-over tensors, which are whole on each GPU.
    """

    fixed_s: float = Field(0.0, ge=0, description="constant seconds of a microbatch at any size and degree")
    linear_s: float = Field(ge=0, description="seconds of one GPU per token, for matrix products")
    square_s: float = Field(ge=0, description="seconds of one GPU per pair of tokens, for attention")
    exchanged_bytes: float = Field(
        ge=0,
        description="bytes per token that change ranks in forward, backward and recomputation",
    )
    states_bytes: float = Field(0.0, ge=0, description="weights, gradients and optimizer state on each GPU")
    token_bytes: float = Field(ge=0, description="bytes of activations per token")
    handed_token_bytes: float = Field(0.0, ge=0, description="bytes of latents per token, whole on each GPU")
    handed_sample_bytes: float = Field(
        0.0, ge=0, description="bytes of context per caption, whole on each GPU"
    )

    def seconds(
        self, batch_S: IndexArray, length_S: IndexArray, degrees_K: IndexArray, links: Links
    ) -> Floats:
        """Return seconds, float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        computed_S1 = tokens_S1 * (self.linear_s + self.square_s * length_S.astype(float)[:, None])
        sent_SK = tokens_S1 * self.exchanged_bytes * (degrees_K - 1) / degrees_K**2
        return np.asarray(self.fixed_s + computed_S1 / degrees_K + sent_SK / links.bytes_per_s(degrees_K))

    def bytes_of_a_gpu(self, batch_S: IndexArray, length_S: IndexArray, degrees_K: IndexArray) -> Floats:
        """Return bytes per GPU, float64 [S, K]."""
        tokens_S1 = (batch_S * length_S).astype(float)[:, None]
        handed_S1 = tokens_S1 * self.handed_token_bytes + batch_S[:, None] * self.handed_sample_bytes
        return np.asarray(self.states_bytes + handed_S1 + tokens_S1 * self.token_bytes / degrees_K)


class TextCost(Settings):
    """Cost of the text encoder on one GPU."""

    fixed_s: float = Field(0.0, ge=0, description="constant seconds of a microbatch")
    sample_s: float = Field(ge=0, description="seconds per caption")
    memory_bytes: float = Field(0.0, ge=0, description="bytes of a GPU, including weights")

    def seconds(self, batch_S: IndexArray) -> Floats:
        """Return seconds, float64 [S]."""
        return np.asarray(self.fixed_s + self.sample_s * batch_S)


@dataclass(frozen=True, eq=False)
class SampleShapes:
    """Microbatches of an iteration, each with B videos of one shape; int64 [S] each.

    Attributes:
        batch: number of videos, B.
        frames: frames of a video; 0 for cached latents.
        length: number of tokens, S.
        height: height in pixels; 0 if unknown.
        width: width in pixels; 0 if unknown.
    """

    batch: IndexArray
    frames: IndexArray
    length: IndexArray
    height: IndexArray = field(default_factory=lambda: np.zeros(1, np.int64))
    width: IndexArray = field(default_factory=lambda: np.zeros(1, np.int64))

    @property
    def size_S3(self) -> IndexArray:
        """Frames, height and width, int64 [S, 3]."""
        return np.stack(np.broadcast_arrays(self.frames, self.height, self.width), axis=1)


class HeldOutError(Settings):
    """Relative error |predicted / measured - 1| of a module's times on held-out shapes."""

    mean: float = Field(ge=0)
    max: float = Field(ge=0)
    rows: int = Field(ge=1, description="number of held-out measurements")


class CostModel(Settings):
    """Cost models of all modules, with the fit's errors."""

    dit: DiTCost
    vae: AnyVAECost | None = Field(description="cost of the VAE; null: latents are cached")
    text: TextCost | None = Field(description="cost of the text encoder; null: contexts are cached")
    links: Links = Links()
    compression: Compression | None = Field(None, description="pixels per token; null: HunyuanVideo's")
    text_tokens: int = Field(0, ge=0, description="number of text tokens included in S")
    held_out: dict[str, HeldOutError] = Field(
        {}, description="error of each fitted module on held-out shapes"
    )

    def problem(
        self, samples: SampleShapes, gpus: int, degrees: tuple[int, ...], memory_bytes: float
    ) -> Problem:
        """Return the planning problem of an iteration.

        Args:
            samples: microbatches of the iteration.
            gpus: number of GPUs.
            degrees: degrees of the DiT (subject to heads and process groups); other modules may use them up to
                their own limits.
            memory_bytes: memory of one GPU.

        Raises:
            UsageError: a module fits at no degree (`Problem`).
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
