"""DDP on a balanced stream of a dataset.

torchrun --nproc-per-node 2 examples/stream_ddp.py my-dataset
"""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from my_model import BUCKETS, Model, losses_of
from torch.nn.parallel import DistributedDataParallel

from reelweave import StepLoader, StreamConfig, VideoStream, open_source


def train(uri: str) -> Model:
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    # Microbatches of a rank in a step, on average; each rank has its own number of them.
    config = StreamConfig(buckets=BUCKETS, microbatches=4, epochs=2)
    loader = StepLoader(VideoStream(open_source(uri), config, rank, world_size))
    model = Model().to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(config.epochs):
        for step in loader:
            for batch in step:
                with nullcontext() if batch.ends_step else ddp.no_sync():
                    loss = batch.weight * losses_of(ddp, batch.to(device, non_blocking=True)).mean()
                    (loss * world_size).backward()  # DDP takes the mean over ranks
            optimizer.step()
            optimizer.zero_grad()
            # What a checkpoint holds: {"model": model.state_dict(), "loader": loader.state_dict()}
    return model


if __name__ == "__main__":
    train(sys.argv[1])
    dist.destroy_process_group()
