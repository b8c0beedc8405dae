"""What the fused operators of our DiT keep for its backward: of M_mem, the bytes per token that need no measurement.

A measured peak (`loader.buckets.memory_fit`) contains it, along with all that is not counted here: attention itself,
linear layers, the MLP, the last gate of each block, weights and their optimizer.
"""

import torch

from train.config.model import DiTConfig
from train.kernels import gate_norm_modulate, norm_modulate, qk_norm
from train.kernels.traffic import PairSize, Size


def kept_by_operators(
    config: DiTConfig, tokens: int, samples: int, text_tokens: int, dtype: torch.dtype
) -> int:
    """Bytes that norms, modulations, gated residuals and the norms of queries and keys keep, forward to backward.

    Args:
        config: of the model.
        tokens: B S of the microbatch, or those of the pack; a bucket allows ``memory_tokens`` of them.
        samples: in it; 0 leaves out their vectors, so that one token gives the bytes per token.
        text_tokens: of all samples, padding included where they are not packed.
        dtype: of the activations; under autocast the narrow type.
    """
    size = Size(tokens, config.hidden, dtype, samples, dtype)
    plain, gated = norm_modulate.saved_bytes(size), gate_norm_modulate.saved_bytes(size)
    heads = config.heads, config.heads, config.hidden // config.heads
    own, cross = (
        qk_norm.saved_bytes(PairSize(tokens, sources, *heads, dtype)) for sources in (tokens, text_tokens)
    )
    # Of a block the first norm has nothing before it, the two others a gated residual; one more precedes the head.
    return config.layers * (plain + 2 * gated + own + cross) + plain
