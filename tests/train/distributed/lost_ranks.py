"""Ranks of which one fails while another has not heard of it yet, or hears of it from a rank between."""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist

from reelweave.loader.errors import RunError
from reelweave.train.distributed.world import RankError, World, join


def late_to_hear(out: str, failed: int) -> None:
    """Rank ``failed`` of three fails; the last one's collective breaks when rank 0, which holds the store, is gone."""
    with join("cpu") as world:
        first_and_last = dist.new_group([0, 2])
        _meet(world, out)
        if world.rank == failed:
            raise RunError("the disk is full")
        if world.rank == 2:
            _wait_for(out, 0, "Z")
            World(1, 2, world.device, first_and_last).barrier()
        world.barrier()


def told_by_a_rank_between(out: str) -> None:
    """Ranks 1 and 2 share a task in which rank 2 fails, and it ends after rank 1; rank 0 waits for both."""
    with join("cpu") as world:
        pair = dist.new_group([1, 2])
        _meet(world, out)
        if world.rank > 0:
            shared = World(world.rank - 1, 2, world.device, pair)
            said = shared.gather_text("no memory" if world.rank == 2 else "")
            if world.rank == 2:
                _wait_for(out, 1, "Z")
            failed = shared.global_rank(next(number for number, text in enumerate(said) if text))
            raise RankError(f"rank {failed} failed: {said[1]}", failed)
        world.barrier()


def in_other_words(out: str) -> None:
    """Rank 2 is killed; rank 1 has an error in words, with that of the broken collective as its cause."""
    with join("cpu", lost_after_s=20.0) as world:
        _meet(world, out)
        if world.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if world.rank == 0:
            _wait_for(out, 1, "Z")
        try:
            world.barrier()
        except RuntimeError as error:
            raise RunError("the exchange broke off") from error


def out_of_memory(out: str) -> None:
    """Rank 0 of two has no memory left while rank 1 is silent, as on a busy machine."""
    with join("cpu", lost_after_s=3.0) as world:
        _meet(world, out)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        _wait_for(out, 1, "T")
        raise torch.OutOfMemoryError("no memory left")


def first_is_killed(out: str) -> None:
    """Rank 0 of two is killed, and the store with it; rank 1 waits where nothing breaks, as in NCCL."""
    with join("cpu", lost_after_s=3.0) as world:
        _meet(world, out)
        if world.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


def first_is_early(out: str) -> None:
    """Rank 0 of two has nothing left to do while rank 1 has."""
    with join("cpu") as world:
        _meet(world, out)
        if world.rank == 1:
            time.sleep(0.5)
            (Path(out) / "done").touch()
    assert (Path(out) / "done").exists(), "the store ends while another rank works"


def _meet(world: World, out: str) -> None:
    (Path(out) / str(world.rank)).write_text(str(os.getpid()))
    world.barrier()


def _wait_for(out: str, rank: int, state: str) -> None:
    """Wait until a rank has stopped (T), or has ended (Z, or there is none)."""
    stat = Path("/proc") / (Path(out) / str(rank)).read_text() / "stat"
    while stat.exists():
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == state:
                return
        except OSError:  # it has just ended
            return
        time.sleep(0.01)
