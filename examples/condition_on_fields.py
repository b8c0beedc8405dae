"""Condition a model on frame rate, size and crop of each clip, and log losses by dataset and source: no join by key.

python examples/condition_on_fields.py my-dataset
"""

import sys
from collections import defaultdict

import torch
from my_model import BUCKETS, Model, losses_of
from torch import nn

from reelweave import Microbatch, StreamConfig, VideoStream, open_source


class Conditioned(nn.Module):
    """A model whose input is shifted by what is known of each clip."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.of_fields = Model(), nn.Linear(7, 3)
        self.fields_BF = torch.zeros(1, 7)

    def forward(self, x_BCTHW: torch.Tensor) -> torch.Tensor:
        return self.model(x_BCTHW + self.of_fields(self.fields_BF)[:, :, None, None, None])


def fields_of(batch: Microbatch) -> torch.Tensor:
    """Return frame rate, size, and the part that trains (top, left, height, width) of each clip, float32 [B, 7]."""
    rows = batch.rows
    numbers = [rows.fps, rows.height, rows.width, *rows.crop.T]
    return torch.stack([torch.as_tensor(column.astype("float32")) for column in numbers], dim=1) / 1000


def train(uri: str) -> None:
    stream = VideoStream(open_source(uri), StreamConfig(buckets=BUCKETS, epochs=1, workers=2))
    model = Conditioned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: dict[tuple[int, str], list[float]] = defaultdict(list)
    for batch in stream:
        model.fields_BF = fields_of(batch)
        loss_B = losses_of(model, batch)
        (batch.weight * loss_B.mean()).backward()
        # Numbers of datasets are those of a blend file; sources, scores and attributes those of the index.
        for group, loss in zip(
            zip(batch.datasets, batch.rows.source, strict=True), loss_B.tolist(), strict=True
        ):
            losses[group].append(loss)
        if batch.ends_step:
            optimizer.step()
            optimizer.zero_grad()
    for (dataset, source), values in sorted(losses.items()):
        mean = sum(values) / len(values)
        sys.stdout.write(f"dataset {dataset}, {source}: loss {mean:.4f} of {len(values)} clips\n")


if __name__ == "__main__":
    train(sys.argv[1])
