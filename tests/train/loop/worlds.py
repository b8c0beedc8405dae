"""Rank functions: training on real and made-up clips that something happens to."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from reelweave.loader.batch import Batch
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.cost import PowerCost
from reelweave.loader.buckets.recalibrate import RecalibrateConfig
from reelweave.loader.dataset import open_dataset
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.log import ProfileConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.interrupt import EXIT_STOPPED
from reelweave.train.loop.trainer import Trainer
from reelweave.train.measure import idle_watch
from reelweave.train.measure.timings import StepClock
from tests.train.clips import ClipStream, tiny_config

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
    changes = {
        "lost_after_s": how.pop("lost_after_s", 4.0 if sends else 60.0),
        "denominator": how.pop("denominator", "step"),
    }
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


class _LetsGo(tuple):
    """No bad samples; that this is so is asked behind a batch's backward, and the file is made then."""

    file: Path

    def __bool__(self) -> bool:
        self.file.touch()
        return False


def slow_stream(out: str, steps: int) -> None:
    """Rank 1 gets each batch 0.2 s after rank 0 is through with its own; of rank 1 a profile is made, too."""
    own, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    class Stream(ClipStream):
        cost = PowerCost()

        def microbatch(self, step, slot=0):
            lets_go = _LetsGo()
            lets_go.file = Path(out) / f"through-{step}"
            while own and not lets_go.file.exists():
                time.sleep(0.01)
            time.sleep(0.2 * own)
            return replace(super().microbatch(step, slot), bad=lets_go)

    idle_watch.WARM_UP, idle_watch.STEPS = 2, 5
    config = tiny_config(steps)
    log = config.log.model_copy(update={"profile": ProfileConfig(from_step=2, steps=2, ranks=(1,))})
    recalibrate = RecalibrateConfig(every_steps=steps, min_timings=10)
    changes = {"log": log, "recalibrate": recalibrate}
    Trainer(config.model_copy(update=changes), Stream(own, size), Path(out)).run()


def measure() -> None:
    """Every rank times one microbatch more than the one before, and hears of all."""
    with join("cpu") as world:
        clock = StepClock(world)
        for step in range(1 + world.rank):
            with clock.microbatch(ClipStream().microbatch(step)):
                pass
        clock.read()
        assert clock.take().rank.tolist() == [rank for rank in range(world.size) for _ in range(1 + rank)]


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


def read_weights(out: str) -> None:
    """Reads the weights of a checkpoint, as ranks do that begin at them."""
    with join("cpu"):
        weights_of(out, "model")


def command(words: list[str], out: str, sends: str = "", once: str = "") -> int:
    """``reelweave WORDS``, what it says in OUT.txt; it gets a signal once OUT holds something of this pattern."""
    from reelweave.pipelines.cli import main

    def send() -> None:
        # A folder has a size; a file has none before it is written.
        while not any(path.stat().st_size for path in Path(out).glob(once)):
            time.sleep(0.01)
        os.kill(os.getpid(), SEND[sends])

    if sends:
        threading.Thread(target=send, daemon=True).start()
    with Path(f"{out}.txt").open("w") as told, redirect_stdout(told):
        return main(words)


def _sender(name: str, delay_s: float, exactly: bool) -> Callable[[], None]:
    def send() -> None:
        os.kill(os.getpid(), SEND[name])

    if not delay_s:
        return send
    return threading.Timer(delay_s if exactly else random.Random().uniform(0, delay_s), send).start


def host_waits(out: str, names: list[str]) -> None:
    """Compare training on the emulated accelerator with the CPU; it is registered for good, in this rank alone."""
    from tests.train.loop.host_waits import compare

    compare(out, names)
