"""Lightning on a balanced stream of a dataset.

torchrun --nproc-per-node 2 examples/stream_lightning.py my-dataset
"""

import os
import sys
from contextlib import nullcontext

import lightning
import torch
from my_model import BUCKETS, Model, losses_of

from reelweave import Step, StepLoader, StreamConfig, VideoStream, open_source

CONFIG = StreamConfig(buckets=BUCKETS, microbatches=4, epochs=2)  # of a rank in a step, on average


class Training(lightning.LightningModule):
    """Optimization is manual, because a step has several backward passes."""

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri, self.model, self.automatic_optimization = uri, Model(), False

    def train_dataloader(self) -> StepLoader:
        source = open_source(self.uri)
        return StepLoader(VideoStream(source, CONFIG, self.trainer.global_rank, self.trainer.world_size))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, step: Step) -> None:
        for batch in step:
            with nullcontext() if batch.ends_step else self.trainer.strategy.block_backward_sync():
                loss = batch.weight * losses_of(self.model, batch).mean()
                self.manual_backward(loss * self.trainer.world_size)  # DDP takes the mean over ranks
        self.optimizers().step()
        self.optimizers().zero_grad()


def train(uri: str) -> Model:
    training, devices = Training(uri), int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = lightning.Trainer(strategy="ddp", max_epochs=CONFIG.epochs, devices=devices)
    trainer.fit(training)
    return training.model


if __name__ == "__main__":
    train(sys.argv[1])
