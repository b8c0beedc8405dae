"""Rules by which the embedding and the head of a model of ours take another patch, or more channels.

Both are linear layers over the values of a patch, channel by channel. New channels begin with zeros, so that the model
computes what it did. Patches are resized as in FlexiViT (Beyer et al. 2023, section 3.4).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.nn import functional as F

from reelweave.train.models.attention.patches import Patch


class Shape(NamedTuple):
    """Shape of the inputs and outputs of a model of ours.

    Attributes:
        patch: latent frames, rows and columns of a token.
        channels: channels of the latents.
        condition: channels behind them in the input, a mask and further latents; 0: none.
    """

    patch: Patch
    channels: int
    condition: int

    @property
    def values(self) -> int:
        """Values of a channel in a patch."""
        return math.prod(self.patch)


Extend = Callable[[torch.Tensor], torch.Tensor]

EMBED, HEAD, HEAD_BIAS = "dit.embed.weight", "dit.head.weight", "dit.head.bias"


def shape_of(embed_columns: int, head_rows: int, patch: Patch) -> Shape | None:
    """Return the shape of a model from that of its embedding and head; None if they fit no model."""
    values = math.prod(patch)
    channels, rest = divmod(head_rows, values)
    columns, rest_of_columns = divmod(embed_columns, values)
    if rest or rest_of_columns or columns - channels not in (0, channels + 1):
        return None
    return Shape(patch, channels, columns - channels)


def extensions(
    before: Shape, now: Shape, channels: Sequence[int] | None = None
) -> tuple[dict[str, Extend], str]:
    """Return the function of each weight that changes, and the changes in words; a model of more channels only.

    Args:
        before: shape of the model whose weights are extended.
        now: shape that they get.
        channels: channel of the new latents that each of the old ones is; None: the first ones, in order.

    Raises:
        ValueError: channels would be dropped.
    """
    for what, less, more in (
        ("channels of latents", now.channels, before.channels),
        ("channels of first frames", now.condition, before.condition),
    ):
        if less < more:
            raise ValueError(f"it has {more} {what}, and this run {less}: none are dropped")
    words = []
    if before.patch != now.patch:
        words.append(f"patch {list(before.patch)} resized to {list(now.patch)}")
    if added := now.channels - before.channels:
        words.append(f"{added} more channels of latents begin with zeros")
    if added := now.condition - before.condition:
        words.append(f"{added} more channels of first frames begin with zeros")
    channels_C = torch.tensor(channels if channels is not None else range(before.channels))
    resize = _resize_matrix(before.patch, now.patch)
    # An input's products with the weights stay what they are where it is the resized one.
    inverse = torch.linalg.pinv(resize.T)
    rules: dict[str, Extend] = {
        EMBED: lambda weight_HV: _extend_columns(weight_HV, before, now, inverse, channels_C),
        HEAD: lambda weight_VH: _extend_rows(weight_VH, before, now, resize, channels_C),
        HEAD_BIAS: lambda bias_V: _extend_rows(bias_V[:, None], before, now, resize, channels_C)[:, 0],
    }
    if before._replace(condition=now.condition) == now:
        rules = {EMBED: rules[EMBED]}
    return rules, " and ".join(words)


def _extend_columns(
    weight_HV: torch.Tensor, before: Shape, now: Shape, inverse_QP: torch.Tensor, channels_C: torch.Tensor
) -> torch.Tensor:
    """Return the weights of the embedding, [hidden, channels * values of a patch], channel by channel."""
    weight_HCP = torch.unflatten(weight_HV.double(), 1, (-1, before.values))
    resized_HCQ = weight_HCP if before.patch == now.patch else weight_HCP @ inverse_QP.T
    extended_HCQ = resized_HCQ.new_zeros(len(weight_HV), now.channels + now.condition, now.values)
    extended_HCQ[:, channels_C] = resized_HCQ[:, : before.channels]
    if before.condition:
        # Behind the noisy latents are a mask and as many channels of given latents.
        condition_C = now.channels + torch.cat([torch.zeros(1, dtype=torch.long), 1 + channels_C])
        extended_HCQ[:, condition_C] = resized_HCQ[:, before.channels :]
    return extended_HCQ.flatten(1).to(weight_HV.dtype)


def _extend_rows(
    weight_VH: torch.Tensor, before: Shape, now: Shape, resize_QP: torch.Tensor, channels_C: torch.Tensor
) -> torch.Tensor:
    """Return the weights of the head, [channels * values of a patch, hidden], channel by channel."""
    weight_CPH = torch.unflatten(weight_VH.double(), 0, (-1, before.values))
    resized_CQH = weight_CPH if before.patch == now.patch else resize_QP @ weight_CPH
    extended_CQH = resized_CQH.new_zeros(now.channels, *resized_CQH.shape[1:])
    extended_CQH[channels_C] = resized_CQH
    return extended_CQH.flatten(0, 1).to(weight_VH.dtype)


def _resize_matrix(before: Patch, now: Patch) -> torch.Tensor:
    """Return the linear map from the values of a patch to those of another, float64 [now, before]."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for old, new in zip(before, now, strict=True):
        axis = _axis_matrix(old, new)
        matrix = (matrix[:, None, :, None] * axis[None, :, None, :]).reshape(len(matrix) * new, -1)
    return matrix


def _axis_matrix(old: int, new: int) -> torch.Tensor:
    """Return linear interpolation to more values, means of neighbours for fewer; float64 [new, old]."""
    units_11OO = torch.eye(old, dtype=torch.float64)[:, None]
    mode = "linear" if new >= old else "area"
    resized_O1N = F.interpolate(units_11OO, new, mode=mode)
    return resized_O1N[:, 0].T
