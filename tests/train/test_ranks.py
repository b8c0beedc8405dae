"""Processes share a server of ranks."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.train.ranks import Ranks


def meet(out: str, own: str, other: str) -> None:
    """Write which server forked this world, and wait for another world."""
    world = os.getppid()
    server = Path(f"/proc/{world}/stat").read_text().rpartition(")")[2].split()[1]
    Path(out, own).write_text(f"{server} {os.environ['MASTER_PORT']}")
    while not Path(out, other).exists():
        time.sleep(0.01)


def test_worlds_of_two_processes_run_at_once_on_one_server(ranks: Ranks, tmp_path: Path) -> None:
    with Ranks(ranks.folder) as others, ThreadPoolExecutor() as pool:
        first = pool.submit(ranks.run, meet, 1, str(tmp_path), "a", "b")
        second = pool.submit(others.run, meet, 1, str(tmp_path), "b", "a")
        assert [first.result().codes, second.result().codes] == [[0], [0]]
    servers, ports = zip(*((tmp_path / name).read_text().split() for name in "ab"), strict=True)
    assert len(set(servers)) == 1
    assert len(set(ports)) == 2
    assert ranks.run(meet, 1, str(tmp_path), "c", "a").codes == [0], "the server ended with one of two"


def kill_the_world() -> None:
    os.kill(os.getppid(), signal.SIGKILL)


def test_who_waits_for_a_world_that_is_killed_learns_it(ranks: Ranks) -> None:
    with Ranks(ranks.folder) as other, pytest.raises(AssertionError, match="was killed"):
        other.run(kill_the_world, 1)
