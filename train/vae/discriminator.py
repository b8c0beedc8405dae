"""Spatio-temporal patch discriminator."""

from typing import cast

import torch
from torch import nn
from torch.nn import functional as F


class PatchDiscriminator(nn.Module):
    """Patch discriminator; logits are positive for real patches of a clip or image.

    PatchGAN (Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks", 2017, section
    3.2) with convolutions over time. ``layers`` of them halve rows, columns and frames; two more keep the size.
    Group norm replaces batch norm, so that a clip's logits depend on no other clip and no rank. Images are
    clips of one frame.

    Args:
        channels: channels of the first layer; they double with each layer, up to 8 times as many.
        layers: number of layers that halve.
    """

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        widths = [channels * min(2**i, 8) for i in range(layers + 1)]
        self.first = _convolution(3, widths[0], 2)
        strides = [2] * (layers - 1) + [1]
        self.inner = nn.ModuleList(
            nn.Sequential(_convolution(before, width, stride), nn.GroupNorm(8, width))
            for before, width, stride in zip(widths[:-1], widths[1:], strides, strict=True)
        )
        self.last = _convolution(widths[-1], 1, 1)

    def forward(self, video_BCTHW: torch.Tensor) -> torch.Tensor:
        """Return logits of P patches per clip, [B, P]; pixels in [-1, 1]."""
        x = F.leaky_relu(self.first(video_BCTHW), 0.2)
        for layer in self.inner:
            x = F.leaky_relu(layer(x), 0.2)
        return cast(torch.Tensor, self.last(x)).flatten(1)


def _convolution(before: int, width: int, stride: int) -> nn.Sequential:
    # Kernel 4 in space as in PatchGAN; 3 in time, which keeps an image's single frame. The padding is separate
    # because of a bug in torch: docs/notes/vae.md.
    return nn.Sequential(nn.ConstantPad3d(1, 0.0), nn.Conv3d(before, width, (3, 4, 4), stride))
