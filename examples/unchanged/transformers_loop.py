"""The Trainer of transformers, with a loss of one's own.

torchrun --nproc-per-node 2 transformers_loop.py --data clips.pt
"""

import torch
from clips import ClipDataset, Model, collate, parse_options
from transformers import Trainer, TrainingArguments


class ClipTrainer(Trainer):
    """Averages the losses of the samples."""

    def compute_loss(self, model: torch.nn.Module, inputs: dict, **_: object) -> torch.Tensor:
        return model(inputs["videos"], inputs["prompts"]).mean()


def main() -> None:
    options = parse_options()
    arguments = TrainingArguments(
        options.out,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=options.epochs,
        max_steps=options.max_steps if options.max_steps < 10**9 else -1,
        save_steps=options.save_every,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        optim="sgd",
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        disable_tqdm=True,
    )
    dataset = ClipDataset(options.data)
    trainer = ClipTrainer(Model(), arguments, train_dataset=dataset, data_collator=collate)
    trainer.train(resume_from_checkpoint=options.resume)


if __name__ == "__main__":
    main()
