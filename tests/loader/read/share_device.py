"""Slices exchanged on an emulated accelerator, whose waits each rank writes to OUT/RANK.json."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from reelweave.loader.read.share import DecodedSlice, LoadedSample, Share

OWNERS = ([0, 1, 2], [1], [2, 0], [0])
"""Owner of each sample, microbatch by microbatch; a long caption in the last one."""


def exchange_on_device(out: str) -> None:
    """Exchange microbatches; note waits for the device, contents, and whether the next slice was asked for ahead."""
    from tests.train.accelerator import DEVICE, HostWaits

    rank, asked = int(os.environ["RANK"]), [threading.Event() for _ in OWNERS]
    dist.init_process_group("gloo")
    waits, ahead = HostWaits("loader/read/share.py:exchange", ()), True
    found: dict[str, list[list[int]]] = {"content": [], "contexts": []}
    with waits:
        slices = [_slice(number, owners, rank) for number, owners in enumerate(OWNERS)]
        for number, part in enumerate(Share(device=DEVICE).exchange(_asked(slices, asked), pin_memory=True)):
            assert part.content.device == DEVICE
            if number + 1 < len(OWNERS):
                ahead &= asked[number + 1].wait(60)
            for name in found:
                found[name].append(getattr(part, name).tolist())
            assert [one.key for one in part.loaded] == [f"{number} of {owner}" for owner in part.owners]
    (Path(out) / f"{rank}.json").write_text(
        json.dumps(found | {"waits": dict(waits.found), "sent": waits.sent, "ahead": ahead})
    )
    dist.destroy_process_group()


def _asked(slices: list[DecodedSlice[int]], asked: list[threading.Event]) -> Iterator[DecodedSlice[int]]:
    for event, part in zip(asked, slices, strict=True):
        event.set()
        yield part


def _slice(number: int, owners: list[int], rank: int) -> DecodedSlice[int]:
    own = owners.count(rank)
    content = torch.full((own * (5 + rank),), 10 * number + rank, dtype=torch.uint8).pin_memory()
    contexts = torch.full((own * (number % 2),), 100 + rank, dtype=torch.uint8).pin_memory()
    caption = "long " * 10_000 if number == len(OWNERS) - 1 else "short"
    one = LoadedSample(f"{number} of {rank}", caption, 0, 5 + rank, [], [], number % 2)
    return DecodedSlice(number, owners, content, contexts, [one] * own)
