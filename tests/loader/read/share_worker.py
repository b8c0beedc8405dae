"""Four ranks of model-parallel groups.

OUT holds the datasets good and bad; what each scenario returns goes to OUT/SCENARIO-RANK.json.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.errors import RunError
from reelweave.loader.read.share import Share
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, config, digest

SETTINGS = {
    "together": config(epochs=4),
    "one by one": config(epochs=4, buckets=BUCKETS.model_copy(update={"memory_tokens": 72})),  # B is 1
    "pairs": config(microbatches=2),
    "stand-ins": config(),
}
TAKEN = 4


class WatchedDataset(Dataset):
    """Counts the bytes that are read from shards, and acts before it reads."""

    def __init__(self, folder: Path, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(open_storage(folder))
        self.before, self.read, self.lock = before, 0, threading.Lock()

    def read_range(self, shard: int, offset: int, size: int) -> bytes:
        self.before()
        content = super().read_range(shard, offset, size)
        with self.lock:
            self.read += len(content)
        return content


def everything(stream: VideoStream) -> list[Any]:
    """All that a stream's microbatches hold, as JSON values."""
    found = [
        [
            *(digest(micro), micro.captions, micro.passes, micro.step_samples, micro.slot, micro.slots),
            *([asdict(bad) for bad in micro.bad], stream.state_dict()),
        ]
        for micro in stream
    ]
    plain: list[Any] = json.loads(json.dumps(found))
    return plain


def read(out: Path, scenario: str, rank: int = 0, world_size: int = 1, share: Share | None = None) -> Any:
    dataset = WatchedDataset(out / ("bad" if scenario == "stand-ins" else "good"))
    found = everything(VideoStream(dataset, SETTINGS[scenario], rank, world_size, share))
    return {"microbatches": found, "read": dataset.read}


def error_of(stream: Iterable[object]) -> list[str]:
    try:
        for _ in stream:
            pass
    except Exception as error:  # noqa: BLE001 - bugs are a case too
        return [type(error).__name__, str(error)]
    return []


def pair(rank: int) -> Share:
    groups = [dist.new_group([first, first + 1]) for first in (0, 2)]
    return Share(groups[rank // 2])


def resumed(out: Path, rank: int) -> list[Any]:
    """The rest of an epoch that four ranks began, read by two."""
    stream = VideoStream(open_dataset(out / "good"), SETTINGS["together"], share=Share())
    iterator = iter(stream)
    for _ in range(TAKEN):
        next(iterator)
    iterator.close()
    again = VideoStream(open_dataset(out / "good"), SETTINGS["together"], share=pair(rank))
    again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
    return everything(again)


def interleaved(out: Path, rank: int) -> Any:
    """Two streams over one share, the second read whole in the middle of the first, on ranks of unequal speed."""
    share = Share()
    first = VideoStream(open_dataset(out / "good"), SETTINGS["together"], share=share)
    found, second = [], []
    for number, micro in enumerate(first):
        found.append(digest(micro))
        time.sleep(0.002 * (rank + number) % 3)
        if number == TAKEN:
            held_out = VideoStream(open_dataset(out / "good"), SETTINGS["stand-ins"], share=share)
            second = [digest(other) for other in held_out]
    return [found, second]


def fails(out: Path, rank: int, error: Exception) -> list[str]:
    reads = count()

    def before() -> None:
        if rank == 2 and next(reads) > 2:
            raise error

    return error_of(VideoStream(WatchedDataset(out / "good", before), config(), share=Share()))


def disagree(out: Path, rank: int) -> list[str]:
    return error_of(VideoStream(open_dataset(out / "good"), config(seed=3 + rank % 2), share=Share()))


def limit(out: Path, rank: int) -> list[str]:
    settings = config(max_bad=1, max_bad_share=0.0, epochs=None)
    return error_of(VideoStream(open_dataset(out / "bad"), settings, share=Share()))


def workers(out: Path, rank: int) -> list[str]:
    stream = VideoStream(open_dataset(out / "good"), config(), share=Share())
    return error_of(DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn"))


def gone(out: Path, rank: int) -> Any:
    """What the partners of rank 1, which is killed, and rank 3, which stops answering, hear and how soon."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3], timeout=timedelta(seconds=4))]
    stream = VideoStream(open_dataset(out / "good"), config(epochs=None), share=Share(groups[rank // 2]))
    if rank % 2:
        for _ in islice(stream, TAKEN):
            pass
        os.kill(os.getpid(), signal.SIGKILL if rank == 1 else signal.SIGSTOP)
    began = time.monotonic()
    found = error_of(stream), time.monotonic() - began
    if rank == 2:
        os.kill(int((out / "pid-3").read_text()), signal.SIGKILL)
    return found


SCENARIOS: dict[str, Callable[[Path, int], Any]] = {
    "together": lambda out, rank: read(out, "together", share=Share()),
    "one by one": lambda out, rank: read(out, "one by one", share=Share()),
    "pairs": lambda out, rank: read(out, "pairs", rank // 2, 2, pair(rank)),
    "stand-ins": lambda out, rank: read(out, "stand-ins", share=Share()),
    "resumed": resumed,
    "interleaved": interleaved,
    "storage fails": lambda out, rank: fails(out, rank, RunError("the storage gave up")),
    "bug": lambda out, rank: fails(out, rank, ZeroDivisionError("a bug")),
    "disagree": disagree,
    "limit": limit,
    "workers": workers,
    "gone": gone,
}


def run_all(folder: str) -> None:
    """All scenarios, one after the other; rank 2 ends rank 3, which has stopped by then."""
    out, rank = Path(folder), int(os.environ["RANK"])
    (out / f"pid-{rank}").write_text(str(os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    for name, scenario in SCENARIOS.items():
        (out / f"{name}-{rank}.json").write_text(json.dumps(scenario(out, rank)))
    dist.destroy_process_group()
