"""A loop as in diffusers' training examples: noise, a schedule of learning rates, an average of the weights.

torchrun --nproc-per-node 2 diffusers_loop.py --data clips.pt
"""

import math
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from clips import ClipDataset, Model, collate, parse_options
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel
from torch.utils.data import DataLoader


def main() -> None:
    options = parse_options()
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    set_seed(0, device_specific=True)
    model = Model()
    average = EMAModel(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    train_dataset = ClipDataset(options.data)
    train_dataloader = DataLoader(train_dataset, batch_size=2, shuffle=True, collate_fn=collate)
    lr_scheduler = get_scheduler("constant_with_warmup", optimizer, num_warmup_steps=2)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )
    steps_per_epoch = math.ceil(len(train_dataloader) / accelerator.gradient_accumulation_steps)
    max_train_steps = min(options.max_steps, options.epochs * steps_per_epoch)
    global_step = first_epoch = 0
    if options.resume:
        accelerator.load_state(options.resume)
        global_step = int(Path(options.resume).name.split("-")[1])
        first_epoch = global_step // steps_per_epoch
    for _ in range(first_epoch, options.epochs):
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                videos = batch["videos"]
                noise_B1111 = torch.rand(len(videos), 1, 1, 1, 1, device=videos.device)
                noisy = torch.lerp(videos, torch.randn_like(videos), noise_B1111)
                loss = model(noisy, batch["prompts"]).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                average.step(model.parameters())
                global_step += 1
                if global_step % options.save_every == 0:
                    accelerator.save_state(f"{options.out}/checkpoint-{global_step}")
            if global_step >= max_train_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
