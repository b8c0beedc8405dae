"""Fixtures shared by all folders: one local Ray, and a server of rank processes."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.train.ranks import Ranks

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Threads that wait for each other spin: two test processes on two cores, of two threads each, would spend most of their
# time on that. Read when torch and numpy are imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--toolchain",
        action="store_true",
        help="compile the kernels for every GPU architecture, and build their library (make kernels)",
    )


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    import ray

    for attempt in range(5):  # Ray gives its own processes 30 s to start, which a busy machine may exceed
        try:
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            break
        except Exception:
            ray.shutdown()
            if attempt == 4:
                raise
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def ranks() -> "Iterator[Ranks]":
    from tests.train.ranks import Ranks

    with Ranks() as server:
        yield server
