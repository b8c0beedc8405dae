"""Accelerate on a balanced stream of a dataset.

torchrun --nproc-per-node 2 examples/stream_accelerate.py my-dataset
"""

import sys
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from my_model import BUCKETS, Model, losses_of

from reelweave import StepLoader, StreamConfig, VideoStream, open_source


def train(uri: str) -> Model:
    # Without GPUs it must be told so, or every process trains by itself.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    # Microbatches of a rank in a step, on average; each rank has its own number of them.
    config = StreamConfig(buckets=BUCKETS, microbatches=4, epochs=2)
    stream = VideoStream(open_source(uri), config, accelerator.process_index, accelerator.num_processes)
    loader = StepLoader(stream)  # not prepared: every process reads its own share already
    model = Model()
    ddp, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.register_for_checkpointing(loader)
    for _ in range(config.epochs):
        for step in loader:
            for batch in step.to(accelerator.device):
                with nullcontext() if batch.ends_step else accelerator.no_sync(ddp):
                    loss = batch.weight * losses_of(ddp, batch).mean()
                    accelerator.backward(loss * accelerator.num_processes)  # DDP takes the mean over ranks
            optimizer.step()
            optimizer.zero_grad()
    return model


if __name__ == "__main__":
    train(sys.argv[1])
