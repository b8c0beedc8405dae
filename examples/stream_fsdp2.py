"""FSDP2 on a balanced stream of a dataset.

torchrun --nproc-per-node 2 examples/stream_fsdp2.py my-dataset
"""

import os
import sys

import torch
import torch.distributed as dist
from my_model import BUCKETS, Model, losses_of
from torch.distributed.fsdp import fully_shard

from reelweave import StepLoader, StreamConfig, VideoStream, open_source


def train(uri: str) -> Model:
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    # Every forward pass gathers weights, so all ranks need equally many microbatches.
    config = StreamConfig(buckets=BUCKETS, microbatches=4, epochs=2, regime="slot")
    loader = StepLoader(VideoStream(open_source(uri), config, rank, world_size))
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(config.epochs):
        for step in loader:
            for batch in step:
                model.set_requires_gradient_sync(batch.ends_step)
                loss = batch.weight * losses_of(model, batch.to(device)).mean()
                (loss * world_size).backward()  # FSDP takes the mean over ranks
            optimizer.step()
            optimizer.zero_grad()
    return model


if __name__ == "__main__":
    train(sys.argv[1])
    dist.destroy_process_group()
