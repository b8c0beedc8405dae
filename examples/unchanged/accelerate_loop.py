"""A loop with Accelerate, its loader prepared, which skips on resume what was trained.

torchrun --nproc-per-node 2 accelerate_loop.py --data clips.pt
"""

from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from clips import ClipDataset, Model, collate, parse_options
from torch.utils.data import DataLoader


def main() -> None:
    options = parse_options()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
    )
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = ClipDataset(options.data)
    loader = DataLoader(dataset, batch_size=2, shuffle=True, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first_step = 0
    if options.resume:
        accelerator.load_state(options.resume)
        first_step = int(Path(options.resume).name.removeprefix("step_"))
    step, done = first_step, options.max_steps <= first_step
    for epoch in range(options.epochs):
        active = loader
        if epoch == 0 and first_step:
            active = accelerator.skip_first_batches(loader, first_step * 2)
        for batch in active:
            with accelerator.accumulate(model):
                loss = model(batch["videos"], batch["prompts"]).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if step % options.save_every == 0:
                    accelerator.save_state(f"{options.out}/step_{step}")
                if done := step >= options.max_steps:
                    break
        if done:
            break
    accelerator.save_model(model, f"{options.out}/model")


if __name__ == "__main__":
    main()
