"""Runs whose launcher ends before its ranks: torchrun by a kill, a shell as shells do."""

import os
import shlex
import signal
import sys
import time
from pathlib import Path

from torch.distributed import run

from reelweave.train.loop.trainer import Trainer
from tests.train.clips import ClipStream, tiny_config

STEPS = 1000


class Slow(ClipStream):
    """Clips of which a step takes some time."""

    def microbatch(self, step, slot=0):
        time.sleep(0.05)
        return super().microbatch(step, slot)


def train(out: str, steps: int) -> None:
    """A rank of a run, and how it ended."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(out)
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    config = tiny_config(steps).model_copy(update={"lost_after_s": 20.0})
    result = Trainer(config, Slow(rank, size), folder / "run").run()
    (folder / f"{rank}.ended").write_text(f"{result.steps} {result.stopped}")


def killed_torchrun(out: str, ranks: int, shell: bool) -> None:
    """Kill torchrun in the middle of a run; wait until its ranks have ended.

    Args:
        out: folder of the run.
        ranks: number of ranks.
        shell: leave a shell between torchrun and each rank.
    """
    folder = Path(out)
    code = f"import tests.train.distributed.launchers as own; own.train({out!r}, {STEPS})"
    script = folder / "rank.sh"
    script.write_text(f"{shlex.join([sys.executable, '-c', code])}\n")
    own = ["bash", str(script)] if shell else [sys.executable, "-c", code]
    started = os.fork()
    if not started:
        # The program of torchrun, in a process that has imported PyTorch.
        os.setsid()
        run.main(["--standalone", f"--nproc-per-node={ranks}", "--no-python", *own])
        os._exit(0)
    pids = _written(folder, ranks)
    _wait_until((folder / "run/metrics.jsonl").exists)
    os.kill(started, signal.SIGKILL)
    os.waitpid(started, 0)
    began = time.monotonic()
    _wait_until(lambda: not any(map(_runs, pids)))
    (folder / "seconds").write_text(str(time.monotonic() - began))


def shell_that_ends(out: str, steps: int) -> None:
    """Start two ranks from a process that ends at once, as a shell does behind nohup and setsid; wait for them."""
    folder = Path(out)
    if not os.fork():
        for rank in range(2):
            if not os.fork():
                os.setsid()
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
                train(out, steps)
                os._exit(0)
        os._exit(0)
    os.wait()
    pids = _written(folder, 2)
    _wait_until(lambda: not any(map(_runs, pids)))


def _written(folder: Path, ranks: int) -> list[int]:
    files = [folder / f"{rank}.pid" for rank in range(ranks)]
    _wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def _runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_until(true) -> None:
    while not true():
        time.sleep(0.05)
