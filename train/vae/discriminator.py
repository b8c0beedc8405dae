"""A discriminator of patches in space and time."""

from typing import cast

import torch
from torch import nn
from torch.nn import functional as F


class PatchDiscriminator(nn.Module):
    """Says of each patch of a clip or picture whether it is real, positive for yes.

    PatchGAN (Isola et al., "Image-to-Image Translation with Conditional Adversarial Networks", 2017, section 3.2) with
    convolutions over time: ``layers`` of them halve rows, columns and frames, two more keep them. Group norm in place
    of batch norm: a clip's verdict depends on no other clip, nor on the rank that has it. Pictures are clips of one
    frame.

    Args:
        channels: of the first layer; each that follows has twice as many, 8 times as many at most.
        layers: that halve.
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
        """Verdicts on P patches of each clip, [B, P]; pixels in [-1, 1]."""
        x = F.leaky_relu(self.first(video_BCTHW), 0.2)
        for layer in self.inner:
            x = F.leaky_relu(layer(x), 0.2)
        return cast(torch.Tensor, self.last(x)).flatten(1)


def _convolution(before: int, width: int, stride: int) -> nn.Sequential:
    # As in PatchGAN a kernel of 4 in space; 3 in time, which leaves a picture's one frame one. The padding stands
    # apart because of a fault of torch: docs/notes/vae.md.
    return nn.Sequential(nn.ConstantPad3d(1, 0.0), nn.Conv3d(before, width, (3, 4, 4), stride))
