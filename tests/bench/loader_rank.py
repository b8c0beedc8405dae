"""One rank of a stream that is killed: it logs what it finished, and rank 0 saves the state behind it."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost
from reelweave.loader.dataset import open_dataset
from reelweave.loader.plan.policy import Regime
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS

DEADLINE_S = 120.0
COSTED = BUCKETS.model_copy(
    update={
        "cost": LinearQuadraticCost(token_s=1, square_s=0),
        "target_step_s": 300.0,
        "memory_tokens": 10**6,
    }
)
Drawn = tuple[str, int]
"""A key, and how often it was drawn before."""


@dataclass(frozen=True)
class Run:
    """Processes that stream from the saved state on.

    Attributes:
        folder: of the state and the logs.
        number: of the run.
        dataset: folder.
        seed: of the stream.
        epochs: to its end.
        ranks: processes.
        microbatches: of a rank in a step.
        regime: when ranks wait.
        lookahead: of the slot regime.
        threads: that decode.
        workers: processes of the ``DataLoader``; without any, threads decode in the rank itself.
        cost: taken over before the first step, if any.
    """

    folder: Path
    number: int
    dataset: Path
    seed: int
    epochs: int
    ranks: int = 1
    microbatches: int = 1
    regime: Regime = "step"
    lookahead: int = 1
    threads: int = 2
    workers: int = 0
    cost: Cost | None = None

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    def log(self, rank: int) -> Path:
        return self.folder / f"run-{self.number:03}.rank-{rank}.jsonl"

    def errors(self, rank: int) -> Path:
        return self.log(rank).with_suffix(".stderr")

    def stream(self, rank: int) -> VideoStream:
        config = StreamConfig(
            buckets=COSTED,
            seed=self.seed,
            epochs=self.epochs,
            microbatches=self.microbatches,
            regime=self.regime,
            lookahead=self.lookahead,
            workers=self.threads,
        )
        return VideoStream(open_dataset(self.dataset), config, rank, self.ranks)

    def saved(self) -> dict[str, Any]:
        """The state on disk; steps are 0 before there is one."""
        return json.loads(self.state.read_text()) if self.state.exists() else {"step": 0, "parts": []}


def train(run: Run, rank: int) -> None:
    """What a rank's process does."""
    os.setsid()  # its worker processes can be killed with it
    with run.errors(rank).open("w") as errors:
        os.dup2(errors.fileno(), 2)
    stream = run.stream(rank)
    if run.state.exists():
        stream.load_state_dict(run.saved())
    if run.cost is not None:
        stream.recalibrate(run.cost)
    batches: Any = stream
    if run.workers:
        batches = DataLoader(stream, batch_size=None, num_workers=run.workers, multiprocessing_context="fork")
    with run.log(rank).open("w") as log:
        for done, step in enumerate(steps_of(batches), 1):
            record = {"step": step[0].step, "epoch": step[0].epoch, "microbatches": list(map(said_of, step))}
            log.write(json.dumps(record) + "\n")
            log.flush()
            after = stream.state_after(step[-1])
            if rank == 0:
                wait_for(lambda: all(len(whole_lines(run.log(other))) >= done for other in range(run.ranks)))  # noqa: B023
                aside = run.state.with_suffix(".aside")
                aside.write_text(json.dumps(after))
                aside.replace(run.state)
            else:
                wait_for(lambda: run.saved()["step"] >= after["step"])  # noqa: B023
                assert run.saved() == after, f"rank 0 saved {run.saved()}, rank {rank} is at {after}"


def steps_of(batches: Iterator[Microbatch]) -> Iterator[list[Microbatch]]:
    """The microbatches of one step after the other."""
    step = []
    for micro in batches:
        step.append(micro)
        if micro.ends_step:
            yield step
            step = []


def said_of(micro: Microbatch) -> tuple[tuple[str, ...], tuple[int, ...], list[str], float]:
    """Keys, passes, digests of the frames, and weight."""
    videos = micro.videos if isinstance(micro, Pack) else micro.video_BCTHW
    digests = [hashlib.sha256(video.numpy().tobytes()).hexdigest() for video in videos]
    return micro.keys, micro.passes, digests, micro.share


def expected_of(start: Run) -> dict[Drawn, str]:
    """Digests of all frames of a stream that nothing disturbs."""
    found = {}
    for micro in start.stream(0):
        keys, passes, digests, _ = said_of(micro)
        found.update(zip(zip(keys, passes, strict=True), digests, strict=True))
    return found


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a log, without one that a kill cut off."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing came of it in {DEADLINE_S:.0f} s")
        time.sleep(0.002)
