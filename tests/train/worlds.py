"""Rank functions: training on real and made-up clips that something happens to."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from loader.batch import Batch
from loader.buckets import BucketConfig
from loader.cost import PowerCost
from loader.dataset import open_dataset
from loader.recalibrate import RecalibrateConfig
from loader.stream import VideoStream
from loader.stream_config import StreamConfig
from tests.train.clips import ClipStream, tiny_config
from train.interrupt import EXIT_STOPPED
from train.log_config import ProfileConfig
from train.models.dit import DiT
from train.trainer import Trainer

SEND = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM, "usr1": signal.SIGUSR1}


def train_clips(
    out: str,
    steps: int,
    sends: str = "",
    rank: int = 0,
    at_step: int = 0,
    delay_s: float = 0,
    exactly: bool = False,
    **how: Any,
) -> int:
    """Trains on `ClipStream`; one rank sends itself a signal, some time after a step (-1: the program) has begun."""
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    act = _sender(sends, delay_s, exactly) if sends and own == rank else None
    if act and at_step < 0:
        act()

    class Stream(ClipStream):
        def microbatch(self, step, slot=0):
            if act and step == at_step and slot == 0:
                act()
            return super().microbatch(step, slot)

    sizes = tuple(how.pop("sizes", ()))
    changes = {"lost_after_s": how.pop("lost_after_s", 4.0), "denominator": how.pop("denominator", "step")}
    config = tiny_config(steps, **how).model_copy(update=changes)
    result = Trainer(config, Stream(own, size, sizes=sizes), Path(out)).run()
    return EXIT_STOPPED if result.stopped else 0


def killed_at(out: str, steps: int, victim: int = 0, moment_s: float = 0.0) -> int:
    """Trains with frequent checkpoints; the victim, if any, kills itself at that moment of its program."""
    sends = "kill" if moment_s else ""
    return train_clips(out, steps, sends, victim, -1, moment_s, exactly=True, every_steps=2)


def by_tokens(out: str, steps: int) -> int:
    """Samples count by their tokens."""
    return train_clips(out, steps, denominator="step_tokens")


def uneven(out: str, steps: int) -> int:
    """Rank 0 has two microbatches of one sample, the others one of two."""
    return train_clips(out, steps, sizes=(1, 1) if os.environ["RANK"] == "0" else ())


def slow_stream(out: str, steps: int) -> None:
    """Rank 1 waits 0.2 s for each batch; it also records a profile of steps 2 and 3."""
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Stream(ClipStream):
        def microbatch(self, step, slot=0):
            time.sleep(0.2 * own)
            return super().microbatch(step, slot)

    config = tiny_config(steps)
    log = config.log.model_copy(update={"profile": ProfileConfig(from_step=2, steps=2, ranks=(1,))})
    Trainer(config.model_copy(update={"log": log}), Stream(own, size), Path(out)).run()


def slow_model(out: str, steps: int) -> None:
    """Rank 1 takes 50 ms longer for each forward than others; behind the last step costs are looked at."""
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def sleep(module: nn.Module, *_: object) -> None:
        if isinstance(module, DiT):
            time.sleep(0.05 * own)

    class Stream(ClipStream):
        cost = PowerCost()

    nn.modules.module.register_module_forward_pre_hook(sleep)
    config = tiny_config(steps).model_copy(
        update={"recalibrate": RecalibrateConfig(every_steps=steps, min_timings=10)}
    )
    Trainer(config, Stream(own, size), Path(out)).run()


def train_dataset(dataset: str, out: str, steps: int, microbatches: int, stop_at: int | None) -> int:
    """Trains on a dataset and notes each sample; the last rank gets SIGTERM while it makes a step."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = tiny_config(steps, every_steps=100)
    buckets = BucketConfig(
        frames=(1, 5, 9),
        sizes=((16, 24), (24, 16)),
        compression=config.compression,
        max_text_tokens=9,
        memory_tokens=300,
    )

    class Stream(VideoStream):
        def __iter__(self) -> Iterator[Batch]:
            with (Path(out) / f"seen-by-{rank}-of-{size}").open("w") as seen:
                for batch in super().__iter__():
                    if batch.step + 1 == stop_at and rank == size - 1:
                        os.kill(os.getpid(), signal.SIGTERM)
                    # A filler repeats samples that count elsewhere.
                    drawn = list(zip(batch.keys, batch.passes, strict=True)) if batch.weight else []
                    seen.write("".join(f"{json.dumps([batch.step, *one])}\n" for one in drawn))
                    yield batch

    settings = StreamConfig(buckets=buckets, microbatches=microbatches, workers=1, prefetch=1)
    stream = Stream(open_dataset(dataset), settings, rank, size)
    Path(out).mkdir(exist_ok=True)
    result = Trainer(config, stream, Path(out)).run()
    return EXIT_STOPPED if result.stopped else 0


def command(config: str, out: str) -> int:
    """``reelweave train``, which gets SIGTERM once it has made a step."""
    from pipelines.cli import main

    def when_it_trains() -> None:
        metrics = Path(out) / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_text().count("\n"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=when_it_trains, daemon=True).start()
    return main(["train", "--config", config, "--set", f"out={out}"])


def _sender(name: str, delay_s: float, exactly: bool) -> Callable[[], None]:
    def send() -> None:
        os.kill(os.getpid(), SEND[name])

    if not delay_s:
        return send
    return threading.Timer(delay_s if exactly else random.Random().uniform(0, delay_s), send).start
