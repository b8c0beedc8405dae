"""Operators under sequence parallelism: inputs and outputs of each rank.

A rank holds the tokens from ``start`` to ``end`` of every sample (or of the pack), and the whole modulation.
Each rank of the group computes the modulation from the same condition by the same weights. Operators do not
communicate. Then

- outputs, and the gradients of x, residual and y, are exact: a token's norm needs no other token;
- dscale, dshift, dgate, dweight and dbias are sums over the rank's own tokens, zero for rows without local
tokens. Summed over the ranks they equal those of one process;
- so are the gradients of whatever computed the modulation, which are linear in them.

**Sum them over the sequence-parallel group once**. Sum the modulation's gradients in the backward, or those
of all weights after it, as for any replicated weight. Never both, and never a mean. Over data-parallel ranks
take the mean as usual; one mean over the ranks of both kinds is too small by the size of the group.

Pass modulation of each sample [B, D] unchanged, and that of each token [B, L, D] by its rows from start to end.
Frames that are split and packed samples are groups, of which a rank may have a part or nothing.
"""

import torch


def clip_groups(cu_seqlens: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Return the group offsets of a pack among one rank's tokens, [n + 1]; groups elsewhere are empty.

    Args:
        cu_seqlens: offsets of the whole pack, [n + 1].
        start: first token of the rank.
        end: the token after its last.
    """
    return cu_seqlens.clamp(start, end) - start


def frame_groups(
    samples: int, frames: int, tokens: int, start: int, end: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Return the frame offsets of B samples among one rank's tokens, int32 [B F + 1].

    For operators on the rank's tokens [B, l, D] as [1, B l, D], with a modulation [B, F, D] as [B F, D].

    Args:
        samples: number of samples, B.
        frames: frames per sample, F.
        tokens: tokens per sample L, F times those of a frame.
        start: first token of each sample on the rank.
        end: the token after its last.
        device: device of the operators.
    """
    ends_F = clip_groups(torch.arange(1, frames + 1, device=device) * (tokens // frames), start, end)
    before_B1 = torch.arange(samples, device=device)[:, None] * (end - start)
    return torch.nn.functional.pad((before_B1 + ends_F).flatten(), (1, 0)).int()
