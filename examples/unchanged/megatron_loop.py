"""A loop as Megatron-LM's: an iterator of micro-batches by data-parallel rank, which goes on behind consumed samples.

torchrun --nproc-per-node 2 megatron_loop.py --data clips.pt
"""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from clips import ClipDataset, Model, collate, parse_options
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

MICROBATCHES, MICRO_BATCH_SIZE = 2, 2


class mpu:  # noqa: N801 - its name in Megatron
    """The part of megatron.core.parallel_state that a data loader asks; without model parallelism here."""

    get_data_parallel_rank = staticmethod(dist.get_rank)
    get_data_parallel_world_size = staticmethod(dist.get_world_size)


class PretrainingSampler:
    """Micro-batches of this rank behind `consumed_samples`."""

    def __init__(self, total_samples: int, consumed_samples: int) -> None:
        self.total_samples, self.consumed_samples = total_samples, consumed_samples

    def __iter__(self) -> Iterator[list[int]]:
        rank, ranks = mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size()
        first = self.consumed_samples + rank * MICRO_BATCH_SIZE
        for start in range(first, self.total_samples, ranks * MICRO_BATCH_SIZE):
            yield list(range(start, min(start + MICRO_BATCH_SIZE, self.total_samples)))


def train_step(
    data_iterator: Iterator[dict], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    for number in range(MICROBATCHES):
        with nullcontext() if number + 1 == MICROBATCHES else model.no_sync():
            batch = next(data_iterator)
            loss = model(batch["videos"], batch["prompts"]).mean()
            (loss / MICROBATCHES).backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    args = parse_options()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"iteration": 0, "consumed_samples": 0}
    if args.resume:
        state = torch.load(args.resume, weights_only=True)
        model.load_state_dict(state.pop("model"))
    dataset = ClipDataset(args.data)
    sampler = PretrainingSampler(len(dataset), state["consumed_samples"])
    batches = iter(DataLoader(dataset, batch_sampler=sampler, collate_fn=collate))
    while state["iteration"] < args.max_steps:
        try:
            train_step(batches, model, optimizer)
        except StopIteration:
            break
        state["iteration"] += 1
        state["consumed_samples"] += MICROBATCHES * MICRO_BATCH_SIZE * mpu.get_data_parallel_world_size()
        if state["iteration"] % args.save_every == 0 and dist.get_rank() == 0:
            Path(args.out).mkdir(exist_ok=True)
            torch.save({**state, "model": model.state_dict()}, f"{args.out}/iter_{state['iteration']}.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
