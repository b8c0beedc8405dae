"""Two ranks that share the tails of their steps, the first one slow; what each of them ran goes to OUT/RANK.json."""

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.dataset import open_dataset
from reelweave.loader.stream.stealing.shared_steps import SharedSteps
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config

SETTINGS = config(epochs=4, microbatches=3)
TAIL = WorkStealingConfig(share=0.5, piece=0.2, readers=2)
BEFORE = 2  # steps before the state is saved


def gradient_of(
    batches: Iterable[Microbatch | Pack], wait: Callable[[], None] = lambda: None
) -> tuple[list[Any], torch.Tensor]:
    """Keys of the batches that count, and the gradient of a small model's loss summed over them."""
    weights = torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()
    keys: list[Any] = []
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        wait()
        video = batch.video_BCTHW.double() / 255
        seen_B6 = torch.cat([video.mean(dim=(2, 3, 4)), video.std(dim=(2, 3, 4))], dim=1)
        total = total + batch.weight * ((seen_B6 @ weights).sin() ** 2).mean()
        keys += [[batch.epoch, batch.step, key] for key in batch.keys if batch.weight]
    total.backward()
    return keys, weights.grad


def run(folder: str) -> None:
    """Runs to a state, and goes on from it with new objects; then the same steps alone, for comparison."""
    out, rank, ranks = Path(folder), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(dist.get_default_backend_for_device("cpu"))
    # The first rank's store chooses a port, and the others are told it.
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = [None if served is None else served.port]
    dist.broadcast_object_list(port)
    store = served or dist.TCPStore("127.0.0.1", port[0], is_master=False)
    dataset = open_dataset(out / "data")
    ran, gradients, batches, state = [], [], 0, None
    for part in ("first", "second"):
        stream = VideoStream(dataset, SETTINGS, rank, ranks)
        if state is not None:
            stream.load_state_dict(json.loads(json.dumps(state)))
        steps = SharedSteps(stream, store, TAIL, name=part)
        for step in islice(steps, BEFORE if part == "first" else None):
            over = f"over/{step.number}"
            # The first rank is as slow as can be: it runs nothing before the other one has found nothing more to run.
            keys, gradient = gradient_of(step, partial(store.wait, [over]) if rank == 0 else lambda: None)
            store.set(over, "yes")
            dist.all_reduce(gradient)
            ran.append(keys)
            gradients.append(gradient.tolist())
            state = stream.state_dict()
    alone = []
    if rank == 0:
        streams = [VideoStream(dataset, SETTINGS, one, ranks) for one in range(ranks)]
        of_step: dict[int, list[Microbatch | Pack]] = {}
        for stream in streams:
            for batch in stream:
                of_step.setdefault(batch.step, []).append(batch)
        alone = [gradient_of(of_step[step])[1].tolist() for step in sorted(of_step)]
        batches = sum(len(step) for step in of_step.values())
    (out / f"{rank}.json").write_text(
        json.dumps({"ran": ran, "gradients": gradients, "alone": alone, "batches": batches, "state": state})
    )
    dist.all_reduce(torch.zeros(1))  # a barrier, which on NCCL would guess its GPU
    dist.destroy_process_group()
