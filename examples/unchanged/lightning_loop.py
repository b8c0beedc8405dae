"""Lightning's Trainer with a LightningModule, a LightningDataModule and automatic optimization.

torchrun --nproc-per-node 2 lightning_loop.py --data clips.pt
"""

import os

import lightning
import torch
from clips import ClipDataset, Model, collate, parse_options
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class ClipData(lightning.LightningDataModule):
    """Clips as batches of two."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def train_dataloader(self) -> DataLoader:
        dataset = ClipDataset(self.path)
        return DataLoader(dataset, batch_size=2, shuffle=True, collate_fn=collate)


class Training(lightning.LightningModule):
    """The model, its optimizer and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: dict) -> torch.Tensor:
        return self.model(batch["videos"], batch["prompts"]).mean()


def main() -> None:
    options = parse_options()
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        accumulate_grad_batches=2,
        max_epochs=options.epochs,
        max_steps=options.max_steps,
        callbacks=[ModelCheckpoint(options.out, every_n_train_steps=options.save_every, save_top_k=-1)],
        default_root_dir=options.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Training(), datamodule=ClipData(options.data), ckpt_path=options.resume, weights_only=True)


if __name__ == "__main__":
    main()
