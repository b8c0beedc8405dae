"""Rank functions: `reelweave sample` on several ranks, with failures on some. Each returns the command's status."""

import os
import signal

from reelweave.pipelines.cli import main
from reelweave.pipelines.sampling.outputs import Outputs
from reelweave.train.sampling.generate import VideoSampler

IMPORTED_FIRST = (
    "reelweave.pipelines.commands.train.sample",
    "reelweave.pipelines.sampling.run",
    "reelweave.pipelines.terminal.mp4",
    "av",
)


def command(*words: str) -> int:
    return main(["sample", *words, "--device", "cpu", "--json"])


def killed_after(videos: int, *words: str) -> int:
    """Rank 0 is killed when it has written so many videos and their records."""
    write, left = Outputs.write, videos

    def counting(self, *arguments):
        nonlocal left
        record = write(self, *arguments)
        left -= 1
        if not left and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return record

    Outputs.write = counting
    return command(*words)


def failing_in(stage: str, *words: str) -> int:
    """Rank 1 fails in a stage of its first video."""
    if os.environ["RANK"] == "1":

        def fail(*_: object) -> None:
            raise RuntimeError(f"no memory left in {stage}")

        setattr(VideoSampler, stage, fail)
    return command(*words)
