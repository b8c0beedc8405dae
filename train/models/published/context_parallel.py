"""Context parallelism of a diffusers transformer, without a copy of its forward.

The model runs on a video made of the local patches, one behind the other in time, since all layers but two are
per token. Rotary positions must be those of the whole video, and self-attention must span ranks. Both travel in
the output of the model's own ``rope``, which its blocks pass on to their attention untouched. There is thus no
state, and a recomputed block gets the same values.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from train.models.attention.attend import Attend
from train.models.attention.patches import Patch, join


class PlacedRotation(NamedTuple):
    """Replacement for the blocks' cosines and sines.

    Attributes:
        cos: cosines, [1, L, 1, head width], each value twice.
        sin: sines, like ``cos``.
        attend: attention pattern.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    attend: Attend


def in_a_row(values_BLV: torch.Tensor, patch: Patch) -> torch.Tensor:
    """Return a video of patches stacked in time, [B, C, L * t, h, w]; inverts `train.models.dit.tokens`."""
    B, L, V = values_BLV.shape
    t, h, w = patch
    return join(values_BLV.reshape(B, L, 1, 1, V // (t * h * w), t * h * w), patch)


@contextmanager
def placed(
    rope: nn.Module, latent_size: Sequence[int], here: slice | torch.Tensor, attend: Attend | None = None
) -> Iterator[None]:
    """Give a model the positions of some tokens of a video, whatever video it is called with.

    Args:
        rope: module from a video's shape to cosines and sines [1, L, 1, head width].
        latent_size: frames, rows and columns of the whole video.
        here: local tokens.
        attend: attention pattern of these tokens; None: the model's own, over all tokens it is called with.
    """

    def whole(_rope: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        x_BCTHW = inputs[0]
        return x_BCTHW.new_empty(()).expand(*x_BCTHW.shape[:2], *latent_size)

    def part(
        _rope: nn.Module, _inputs: Any, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> PlacedRotation | tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (whole[:, here] for whole in rotation)
        return (cos, sin) if attend is None else PlacedRotation(cos, sin, attend)

    hooks = rope.register_forward_pre_hook(whole), rope.register_forward_hook(part)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class SelfAttention:
    """Self-attention processor (``WanAttention``) that uses the `Attend` of `PlacedRotation` if there is one.

    Args:
        theirs: processor for all other calls.
    """

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        rotary_emb: tuple[torch.Tensor, torch.Tensor] | PlacedRotation | None = None,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D], with the processor's own signature."""
        if not isinstance(rotary_emb, PlacedRotation):
            y_BLD: torch.Tensor = self.theirs(
                attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb
            )
            return y_BLD
        q_BLD, k_BLD = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states))
        v_BLD = attn.to_v(hidden_states)
        q_BLHD, k_BLHD, v_BLHD = (x.unflatten(2, (attn.heads, -1)) for x in (q_BLD, k_BLD, v_BLD))
        q_BLHD, k_BLHD = (_rotated(x, rotary_emb) for x in (q_BLHD, k_BLHD))
        y_BHLD = rotary_emb.attend.attend(*(x.transpose(1, 2) for x in (q_BLHD, k_BLHD, v_BLHD)))
        out_BLD: torch.Tensor = attn.to_out[1](attn.to_out[0](y_BHLD.transpose(1, 2).flatten(2)))
        return out_BLD


def _rotated(x_BLHD: torch.Tensor, at: PlacedRotation) -> torch.Tensor:
    """Rotate pairs of adjacent values, in the dtype of the positions if that is wider."""
    even, odd = x_BLHD[..., 0::2], x_BLHD[..., 1::2]
    cos, sin = at.cos[..., 0::2], at.sin[..., 1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return pairs.flatten(-2).type_as(x_BLHD)
