"""Work of children in `test_isolate.py`; each child imports this module, so it imports little."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from reelweave.loader.errors import RunError


def work(row: dict) -> Iterator[dict]:
    yield {"pid": os.getpid(), "name": row["name"]}
    if row["name"] == "poison":
        os.kill(os.getpid(), signal.SIGSEGV)
    if row["name"] == "hang":
        time.sleep(60)
    if row["name"] == "storage":
        raise RunError("s3://bucket/key cannot be read: access denied")
    if row["name"] == "once" and not Path(row["marker"]).exists():
        Path(row["marker"]).touch()
        os._exit(9)
    yield {"pid": os.getpid(), "name": row["name"] + " done"}


class StartsAfter:
    """Work whose children die while they start, as long as lives are left; each costs one."""

    def __init__(self, lives: Path) -> None:
        self.lives = lives

    def __call__(self, row: dict) -> Iterator[dict]:
        return work(row)

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state
        for life in self.lives.iterdir():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
