"""The operators where the tokens of a sample lie on several ranks: what a rank gives them, and what it gets.

A rank holds the tokens from ``start`` to ``end`` of every sample (or of the pack), and the whole modulation, made from
the same condition by the same weights on each rank of the group. Nothing inside the operators communicates. Then

- outputs, and the gradients of x, residual and y, are whole: a token's norm needs no other token;
- dscale, dshift, dgate, dweight and dbias are sums over the rank's own tokens, zero for rows that it has no token of.
  Added up over the ranks they are those of one process;
- so are the gradients of whatever made the modulation, which are linear in them.

**They are summed over the sequence-parallel group once**: either the modulation's gradients, in the backward, or those
of all weights, after it, as of any replicated weight. Never both, and never a mean. Over data-parallel ranks the mean
is taken as ever; one mean over the ranks of both kinds is too small by the size of the group.

Modulation of each sample [B, D] is given as it is; that of each token [B, L, D] by its rows from start to end.
Frames that are cut in two and packed samples are groups, of which a rank may have a part or nothing.
"""

import torch


def clip_groups(cu_seqlens: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """The groups of a pack among the tokens of one rank, [n + 1]; those that lie elsewhere are empty.

    Args:
        cu_seqlens: of the whole pack, [n + 1].
        start: first token of the rank.
        end: the token after its last.
    """
    return cu_seqlens.clamp(start, end) - start


def frame_groups(
    samples: int, frames: int, tokens: int, start: int, end: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """The frames of B samples among the tokens of one rank, int32 [B F + 1].

    For operators on the rank's tokens [B, l, D] as [1, B l, D], with a modulation [B, F, D] as [B F, D].

    Args:
        samples: B.
        frames: F of each.
        tokens: L of each sample, F times those of a frame.
        start: first token of each sample on the rank.
        end: the token after its last.
        device: where the operators run.
    """
    ends_F = clip_groups(torch.arange(1, frames + 1, device=device) * (tokens // frames), start, end)
    before_B1 = torch.arange(samples, device=device)[:, None] * (end - start)
    return torch.nn.functional.pad((before_B1 + ends_F).flatten(), (1, 0)).int()
