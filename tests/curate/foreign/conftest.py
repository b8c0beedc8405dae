"""Readers that stay from one index to the next: a test has some of them, and each takes 0.7 s to start."""

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reelweave.curate.foreign import crew
from reelweave.curate.frames.child_process import Isolated

IDLE: dict[Any, list[Any]] = defaultdict(list)
"""Children that wait for work, by where and how they were started."""
STARTER = ThreadPoolExecutor(1)
"""A thread that stays: children end with the thread that started them."""


def surroundings() -> Any:
    """What a process inherits when it starts, so that a test which changes it has readers of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return Path.cwd(), frozenset(environment.items())


class Kept(Isolated[Any, Any]):
    """An isolated function whose child stays when its work is done; one at work ends as usual."""

    _at_work = False

    def __call__(self, task: Any) -> Any:
        self._at_work = True
        done = super().__call__(task)
        self._at_work = False
        return done

    def _start_child(self) -> Any:
        self._started_in = surroundings()
        with suppress(IndexError):
            return IDLE[self._started_in].pop()
        return STARTER.submit(super()._start_child).result()

    def close(self) -> None:
        if self._child is not None and not self._at_work:
            IDLE[self._started_in].append(self._child)
            self._child = None
        super().close()


@pytest.fixture(scope="package", autouse=True)
def kept_readers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew, "Isolated", Kept)
        yield
    for child in (child for children in IDLE.values() for child in children):
        child.stop()
    IDLE.clear()
