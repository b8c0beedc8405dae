"""FLOPs of a model per sample, from shapes alone.

A multiply-add counts as two. Matrix products and attention are counted, whichever kernels run them.
Element-wise operations, padding and recomputation are not: activation checkpoints, and the scores that flash
attention recomputes in its backward. A pack costs the sum of its samples.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from reelweave.train.config.model import MMDiTConfig, ModelConfig, STDiTConfig

TIME_WIDTH = 256
"""Width of the timestep embedding's input."""


class Flops(NamedTuple):
    """FLOPs of the model on one sample.

    Attributes:
        forward: FLOPs of the prediction.
        backward: FLOPs of the gradients of all weights.
        attention: share of `forward` spent on scores and weighted sums. Flash attention recomputes the scores
            in its backward, half of this again, which `torch.utils.flop_counter` counts and this does not.
    """

    forward: int
    backward: int
    attention: int

    @property
    def training(self) -> int:
        """FLOPs of forward and backward."""
        return self.forward + self.backward

    @property
    def adapting(self) -> int:
        """FLOPs of forward and of gradients of inputs: without the layers of adapters."""
        return 2 * self.forward


def sample_flops(
    config: ModelConfig,
    channels: tuple[int, int],
    text_width: int,
    latent_size: Sequence[int],
    text_tokens: int,
) -> Flops:
    """Return the FLOPs of a built-in model on one sample, alone or in a pack.

    Each product runs once forward and twice backward, for the gradients of its two factors. Gradients of
    latents, times and text are not needed. (With a trained text encoder the last one is.)

    Args:
        config: architecture.
        channels: channels of the latents, and of the condition behind them.
        text_width: width of the text context.
        latent_size: frames, rows and columns of the latents.
        text_tokens: number of tokens of the caption.
    """
    hidden, sizes = config.hidden, zip(latent_size, config.patch, strict=True)
    frames, rows, columns = (size // step for size, step in sizes)
    grid, tokens = (frames, rows * columns), frames * rows * columns
    inputs, values = sum(channels) * math.prod(config.patch), channels[0] * math.prod(config.patch)
    stem = _linear(tokens, inputs, hidden) + _linear(1, TIME_WIDTH, hidden)
    stem += _linear(text_tokens, text_width, hidden)
    layers = _linear(1, hidden, hidden) + _modulation(config, 2) + _linear(tokens, hidden, values)
    if isinstance(config, MMDiTConfig):
        inner, attention = _joint_blocks(config, tokens, text_tokens)
    else:
        inner, attention = _blocks(config, grid, text_tokens)
    forward = stem + layers + inner + attention
    return Flops(forward, 2 * forward - stem, attention)


def utilisation(flops: float, seconds: float, peak_flops_per_s: float) -> float:
    """Return MFU, model FLOPs relative to the peak (Chowdhery et al., "PaLM", 2022, appendix B)."""
    return flops / (seconds * peak_flops_per_s)


def _blocks(config: ModelConfig, grid: tuple[int, int], text_tokens: int) -> tuple[int, int]:
    """Return FLOPs of layers and attention in the blocks of a DiT or ST-DiT."""
    frames, spatial = grid
    tokens = frames * spatial
    key_counts = [tokens]
    if isinstance(config, STDiTConfig):
        key_counts = [tokens] * config.full_attention + [spatial, frames]
    layers = _modulation(config, 3 * len(key_counts) + 6)
    layers += len(key_counts) * 4 * _linear(tokens, config.hidden, config.hidden)
    layers += 2 * _linear(tokens, config.hidden, config.hidden) + _mlp(config, tokens)
    layers += 2 * _linear(text_tokens, config.hidden, config.hidden)
    attention = sum(_attention(config, tokens, keys) for keys in (*key_counts, text_tokens))
    return config.layers * layers, config.layers * attention


def _joint_blocks(config: MMDiTConfig, tokens: int, text_tokens: int) -> tuple[int, int]:
    """Return FLOPs of layers and attention in MMDiT blocks; the last one has only keys and values of text."""
    both, width = tokens + text_tokens, config.hidden
    layers = 4 * _linear(both, width, width) + _mlp(config, both) + 2 * _modulation(config, 6)
    last = 4 * _linear(tokens, width, width) + _mlp(config, tokens) + _modulation(config, 6)
    last += 2 * _linear(text_tokens, width, width) + _modulation(config, 2)
    attention = (config.layers - 1) * _attention(config, both, both) + _attention(config, tokens, both)
    return (config.layers - 1) * layers + last, attention


def _linear(rows: int, inputs: int, outputs: int) -> int:
    return 2 * rows * inputs * outputs


def _mlp(config: ModelConfig, rows: int) -> int:
    return 2 * _linear(rows, config.hidden, config.inner)


def _attention(config: ModelConfig, queries: int, keys: int) -> int:
    """Return FLOPs of scores and weighted sums."""
    return 2 * _linear(queries, config.hidden, keys)


def _modulation(config: ModelConfig, vectors: int) -> int:
    if config.adaln_rank is None:
        return _linear(1, config.hidden, vectors * config.hidden)
    return _linear(1, config.hidden, config.adaln_rank) + _linear(
        1, config.adaln_rank, vectors * config.hidden
    )
