"""Memory that fused operators of the DiT save for backward, the part of M_mem known without measurement.

A measured peak (`reelweave.loader.buckets.memory_fit`) includes it, along with what is not counted here. That is
attention itself, linear layers, the MLP, the last gate of each block, weights and their optimizer.
"""

import torch

from reelweave.train.config.model import DiTConfig
from reelweave.train.kernels.gate_norm_modulate import operator as gate_norm_modulate
from reelweave.train.kernels.norm_modulate import operator as norm_modulate
from reelweave.train.kernels.qk_norm import operator as qk_norm
from reelweave.train.kernels.shared.traffic import PairSize, Size


def kept_by_operators(
    config: DiTConfig, tokens: int, samples: int, text_tokens: int, dtype: torch.dtype
) -> int:
    """Return the bytes that norms, modulations, gated residuals and query-key norms save for backward.

    Args:
        config: architecture.
        tokens: B S of the microbatch or pack; a bucket allows ``memory_tokens`` of them.
        samples: number of samples; 0 omits their vectors, so that one token gives the bytes per token.
        text_tokens: number of text tokens of all samples, with padding unless packed.
        dtype: dtype of activations; under autocast the narrow one.
    """
    size = Size(tokens, config.hidden, dtype, samples, dtype)
    plain, gated = norm_modulate.saved_bytes(size), gate_norm_modulate.saved_bytes(size)
    heads = config.heads, config.heads, config.hidden // config.heads
    self_attention, cross = (
        qk_norm.saved_bytes(PairSize(tokens, sources, *heads, dtype)) for sources in (tokens, text_tokens)
    )
    # A block has one plain norm and two after a gated residual; one more plain norm precedes the head.
    return config.layers * (plain + 2 * gated + self_attention + cross) + plain
