"""Inputs of the advisor: a model and its video, the seconds of one GPU, and the machine."""

import math
from dataclasses import dataclass

from pydantic import Field

from reelweave.loader.settings import Settings


@dataclass(frozen=True)
class VideoModel:
    """Transformer over one video.

    Attributes:
        name: its name.
        layers: number of blocks.
        hidden: width of a token.
        heads: number of attention heads.
        inner: width within the MLP.
        parameters: number of parameters that a GPU holds.
        grid: tokens along time, rows and columns.
        text_tokens: number of text tokens that video tokens attend to.
        passes: passes of guidance in each step; 1 for distilled models.
        steps: number of steps.
        latent_bytes: bytes of the latents in float32.
        own_text: text tokens go through the blocks with the video's (joint attention).
        spatial_temporal: blocks attend within frames and within places in turn, instead of over all tokens.
        known_attention: share of a pass's FLOPs in self-attention, as counted; None: that of the widths.
        spatial_share: share of linear layers in the blocks that attend within frames; for spatial_temporal.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    inner: int
    parameters: float
    grid: tuple[int, int, int]
    text_tokens: int
    passes: int
    steps: int
    latent_bytes: int
    own_text: bool = False
    spatial_temporal: bool = False
    known_attention: float | None = None
    spatial_share: float = 0.5

    @property
    def tokens(self) -> int:
        """Number of tokens in self-attention."""
        return math.prod(self.grid) + self.text_tokens * self.own_text

    @property
    def attention_share(self) -> float:
        """Share of a pass's FLOPs in scores and weighted sums of self-attention."""
        if self.known_attention is not None:
            return self.known_attention
        cross = 0 if self.own_text else 2 * 2 * self.hidden**2 + 4 * self.text_tokens * self.hidden
        linear = 4 * 2 * self.hidden**2 + cross + 2 * 2 * self.hidden * self.inner
        frames, positions = self.grid[0], self.grid[1] * self.grid[2]
        attention = 4 * self.hidden * ((frames + positions) / 2 if self.spatial_temporal else self.tokens)
        return attention / (linear + attention)


class OneGpu(Settings):
    """Seconds of a video on one GPU."""

    denoise_s: float = Field(gt=0, description="seconds of all steps")
    decode_s: float = Field(0.0, ge=0, description="seconds of the VAE's decoder, which ranks share")
    other_s: float = Field(
        0.0, ge=0, description="seconds of text encoder and all else, which ranks do not share"
    )


class SamplingMachine(Settings):
    """GPUs and the links between them."""

    gpus: int = Field(ge=1, description="number of GPUs")
    gpus_per_node: int = Field(8, ge=1, description="GPUs that share the fast links")
    node_bytes_per_s: float = Field(450e9, gt=0, description="bandwidth of a GPU within a node, one way")
    network_bytes_per_s: float = Field(50e9, gt=0, description="bandwidth of a GPU to other nodes, one way")
    efficiency: float = Field(0.7, gt=0, le=1, description="share of a bandwidth that collectives reach")
    latency_s: float = Field(20e-6, ge=0, description="seconds of a collective of nothing")
    launch_s: float = Field(50e-6, ge=0, description="seconds of a slice of a layer without work")
    memory_bytes: float | None = Field(None, gt=0, description="memory of a GPU; null: not checked")
    decode_ranks: int = Field(8, ge=1, description="number of ranks beyond which the decode gains nothing")

    def bytes_per_s(self, span: int) -> float:
        """Return what a collective over so many adjacent GPUs reaches."""
        bandwidth = self.node_bytes_per_s if span <= self.gpus_per_node else self.network_bytes_per_s
        return self.efficiency * bandwidth
