"""Context parallelism of diffusers transformers, without a copy of their forward.

A model runs on a video made of the local patches, one behind the other in time, since all layers but two are
per token. Positions must be those of the whole video, and attention must span ranks. Positions and attention
pattern travel in place of the model's rotary positions, which its blocks pass on to their attention untouched.
There is thus no state, and a recomputed block gets the same values.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from reelweave.train.models.attention.attend import Attend
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.patches import Patch, join

Rotation = tuple[torch.Tensor, torch.Tensor]
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Placed(NamedTuple):
    """Replacement for the cosines and sines that blocks pass to their attention.

    Attributes:
        rotation: cosines and sines of the local video tokens in the model's own form; None without rotary positions.
        attend: attention pattern.
        joint: layout of the local video and text tokens; None if text is no part of the sequence.
    """

    rotation: Rotation | None
    attend: Attend
    joint: JointSequence | None = None


def in_a_row(values_BLV: torch.Tensor, patch: Patch) -> torch.Tensor:
    """Return a video of patches stacked in time, [B, C, L * t, h, w]; inverts `reelweave.train.models.dit.tokens`."""
    B, L, V = values_BLV.shape
    t, h, w = patch
    return join(values_BLV.reshape(B, L, 1, 1, V // (t * h * w), t * h * w), patch)


@contextmanager
def select_positions(
    positions: nn.Module, latent_size: Sequence[int], select: Callable[[Any], object]
) -> Iterator[None]:
    """Let a module make the positions of a whole video, whatever video it is called with, and select local ones.

    Args:
        positions: module from a video, of which it reads the shape, to values of each token.
        latent_size: frames, rows and columns of the whole video.
        select: function from the values of all tokens to the module's result.
    """

    def whole(_module: nn.Module, inputs: tuple[torch.Tensor]) -> torch.Tensor:
        x_BCTHW = inputs[0]
        return x_BCTHW.new_empty(()).expand(*x_BCTHW.shape[:2], *latent_size)

    hooks = (
        positions.register_forward_pre_hook(whole),
        positions.register_forward_hook(lambda _module, _inputs, values: select(values)),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class SelfAttention:
    """Self-attention processor (``WanAttention``) that uses the `Attend` of `Placed` if there is one.

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
        rotary_emb: Rotation | Placed | None = None,
    ) -> torch.Tensor:
        """Map tokens [B, L, D] to [B, L, D], with the processor's own signature."""
        if not isinstance(rotary_emb, Placed):
            y_BLD: torch.Tensor = self.theirs(
                attn, hidden_states, encoder_hidden_states, attention_mask, rotary_emb
            )
            return y_BLD
        assert rotary_emb.rotation is not None, "Wan has rotary positions"
        q_BLD, k_BLD = attn.norm_q(attn.to_q(hidden_states)), attn.norm_k(attn.to_k(hidden_states))
        v_BLD = attn.to_v(hidden_states)
        q_BLHD, k_BLHD, v_BLHD = (x.unflatten(2, (attn.heads, -1)) for x in (q_BLD, k_BLD, v_BLD))
        q_BLHD, k_BLHD = (_rotate_pairs(x, rotary_emb.rotation) for x in (q_BLHD, k_BLHD))
        y_BHLD = rotary_emb.attend.attend(*(x.transpose(1, 2) for x in (q_BLHD, k_BLHD, v_BLHD)))
        out_BLD: torch.Tensor = attn.to_out[1](attn.to_out[0](y_BHLD.transpose(1, 2).flatten(2)))
        return out_BLD


def _rotate_pairs(x_BLHD: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate pairs of adjacent values, in the dtype of the positions if that is wider."""
    even, odd = x_BLHD[..., 0::2], x_BLHD[..., 1::2]
    cos, sin = rotation[0][..., 0::2], rotation[1][..., 1::2]
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return pairs.flatten(-2).type_as(x_BLHD)


class JointAttention:
    """Processor of CogVideoX, HunyuanVideo and Cosmos that uses the patterns of `Placed` if there is one.

    Queries and keys are normalized per head. Text has no rotary positions. It is a second stream with weights
    of its own (HunyuanVideo's first blocks), or with those of the video. Or it is no part of the sequence
    (Cosmos).

    Args:
        theirs: processor for all other calls.
        pairs: place of the dimension of two among rotated values, as in ``diffusers.models.embeddings``.
    """

    def __init__(self, theirs: Any, pairs: Literal[-1, -2] = -1) -> None:
        self.theirs = theirs
        self.pairs = pairs

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Rotation | Placed | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Map tokens [B, L, D], and those of text [B, M, D] if given, with the processors' own signature."""
        at, x_BLD, text_BMD = image_rotary_emb, hidden_states, encoder_hidden_states
        if not isinstance(at, Placed):
            theirs: torch.Tensor = self.theirs(attn, x_BLD, text_BMD, attention_mask, at)
            return theirs
        if text_BMD is None:
            y_BHLD = at.attend.attend(*self._rotate(_heads(attn, x_BLD), at))
            return _out(attn, y_BHLD)
        assert at.joint is not None, "text is part of the sequence"
        added = getattr(attn, "add_q_proj", None) is not None
        if added:
            video, text = _heads(attn, x_BLD), _added_heads(attn, text_BMD)
        else:
            both = _heads(attn, torch.cat([x_BLD, text_BMD], dim=1))
            lengths = [x_BLD.shape[1], text_BMD.shape[1]]
            video, text = zip(*(torch.split(z_BHND, lengths, dim=2) for z_BHND in both), strict=True)
        joint = map(at.joint.join, self._rotate(video, at), text)
        y_BHLD, z_BHMD = at.joint.part(at.attend.attend(*joint))
        text_out = attn.to_add_out(z_BHMD.transpose(1, 2).flatten(2)) if added else _out(attn, z_BHMD)
        return _out(attn, y_BHLD), text_out

    def _rotate(self, heads: Heads, at: Placed) -> Heads:
        from diffusers.models.embeddings import apply_rotary_emb

        q_BHLD, k_BHLD, v_BHLD = heads
        if at.rotation is not None:
            q_BHLD, k_BHLD = (
                apply_rotary_emb(x_BHLD, at.rotation, use_real_unbind_dim=self.pairs)
                for x_BHLD in (q_BHLD, k_BHLD)
            )
        return q_BHLD, k_BHLD, v_BHLD


def _heads(attn: Any, x_BLD: torch.Tensor) -> Heads:
    """Return queries, keys and values, [B, H, L, head width] each."""
    layers = (attn.to_q, attn.norm_q), (attn.to_k, attn.norm_k), (attn.to_v, None)
    return _project_heads(attn, x_BLD, layers)


def _added_heads(attn: Any, text_BMD: torch.Tensor) -> Heads:
    """Return queries, keys and values of text that has weights of its own, like `_heads`."""
    layers = (
        (attn.add_q_proj, attn.norm_added_q),
        (attn.add_k_proj, attn.norm_added_k),
        (attn.add_v_proj, None),
    )
    return _project_heads(attn, text_BMD, layers)


def _project_heads(attn: Any, x_BLD: torch.Tensor, layers: Sequence[tuple[Any, Any]]) -> Heads:
    projections = []
    for layer, norm in layers:
        x_BHLD = layer(x_BLD).unflatten(2, (attn.heads, -1)).transpose(1, 2)
        projections.append(x_BHLD if norm is None else norm(x_BHLD))
    q_BHLD, k_BHLD, v_BHLD = projections
    # Norms may be wider than the values, as attention operators would narrow them under autocast.
    return q_BHLD.type_as(v_BHLD), k_BHLD.type_as(v_BHLD), v_BHLD


def _out(attn: Any, y_BHLD: torch.Tensor) -> torch.Tensor:
    """Return a stream after the output layer and its dropout; HunyuanVideo's single-stream blocks have none."""
    y_BLD = y_BHLD.transpose(1, 2).flatten(2)
    for layer in getattr(attn, "to_out", None) or ():
        y_BLD = layer(y_BLD)
    return y_BLD
