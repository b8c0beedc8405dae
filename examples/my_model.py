"""What the streaming examples train: put your own model, loss and buckets in the place of these."""

import torch
from torch import nn

from reelweave import BucketConfig, Compression, Microbatch

BUCKETS = BucketConfig(
    frames=(9, 17, 33),
    sizes=((176, 320), (320, 176)),
    compression=Compression(
        frames=4, height=16, width=16, causal=True
    ),  # your VAE's times your model's patch
    max_text_tokens=77,
    memory_tokens=20_000,  # of a microbatch, at most
)


class Model(nn.Module):
    """Predicts each frame, at an eighth of its size, from the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Conv3d(3, 3, 3, padding=1) for _ in range(2))

    def forward(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x_BCTHW = x_BCTHW + torch.tanh(block(x_BCTHW))
        return x_BCTHW


def losses_of(model: nn.Module, batch: Microbatch) -> torch.Tensor:
    """Return the loss of each of the B samples; `batch.captions` are their texts."""
    video_BCTHW = nn.functional.avg_pool3d(batch.video_BCTHW.float() / 127.5 - 1, (1, 8, 8))
    return (model(video_BCTHW[:, :, :-1]) - video_BCTHW[:, :, 1:]).square().mean((1, 2, 3, 4))
