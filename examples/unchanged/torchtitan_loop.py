"""A loop as torchtitan's: FSDP2, a loader with a state, and all of it in a distributed checkpoint (DCP).

torchrun --nproc-per-node 2 torchtitan_loop.py --data clips.pt
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from clips import ClipDataset, Model, collate, parse_options
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

ACCUMULATE = 2


class TrainState:
    """Model, optimizer and step, as DCP saves and loads them."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer, self.step = model, optimizer, 0

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.step = int(state["step"])


def batch_generator(loader: StatefulDataLoader, epochs: int) -> Iterator[dict]:
    for _ in range(epochs):
        yield from loader


def main() -> None:
    options = parse_options()
    dist.init_process_group("cpu:gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = fully_shard(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    dataset = ClipDataset(options.data)
    sampler = DistributedSampler(dataset, ranks, rank)
    loader = StatefulDataLoader(dataset, batch_size=2, sampler=sampler, collate_fn=collate)
    states = {"train": (train := TrainState(model, optimizer)), "dataloader": loader}
    if options.resume:
        dcp.load(states, checkpoint_id=options.resume)
    batches = batch_generator(loader, options.epochs)
    steps_per_epoch = len(loader) // ACCUMULATE
    while train.step < min(options.max_steps, options.epochs * steps_per_epoch):
        for _ in range(ACCUMULATE):
            batch = next(batches)
            loss = model(batch["videos"], batch["prompts"]).mean()
            (loss / ACCUMULATE).backward()
        optimizer.step()
        optimizer.zero_grad()
        train.step += 1
        if train.step % options.save_every == 0:
            dcp.save(states, checkpoint_id=f"{options.out}/step-{train.step}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
