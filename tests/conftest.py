"""Fixtures shared by all folders: one local Ray, a server of rank processes, and one of commands."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.train.ranks import Ranks
    from tests.warm import Warm

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Threads that wait for each other spin: two test processes on two cores, of two threads each, would spend most of their
# time on that. Read when torch and numpy are imported; processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file in one process, and all that need Ray in the same one: Ray starts once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def ray_local() -> Iterator[str]:
    """A Ray of two processors in this process; yields the address at which others join it.

    Tests that need it are marked ``xdist_group("ray")``.
    """
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
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="session")
def ranks() -> "Iterator[Ranks]":
    from tests.train.ranks import Ranks

    with Ranks() as server:
        yield server


@pytest.fixture(scope="session")
def warm() -> "Iterator[Warm]":
    from tests.warm import Warm

    with Warm() as started:
        yield started
