"""SIGTERM, by which `timeout`, systemd, Slurm and Kubernetes stop a process: every command obeys it as Ctrl-C."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status after SIGTERM, as a shell tells it."""


class StopSignal:
    """SIGTERM to this process.

    Attributes:
        heard: True after the first one.
    """

    def __init__(self) -> None:
        self.heard = False

    def _hear(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as `signal` calls it
        # `timeout` sends it twice, to the process and to its group. The second may not disturb how the first ends it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.heard = True
        raise KeyboardInterrupt


@contextmanager
def raise_at_sigterm() -> Iterator[StopSignal]:
    """Raise KeyboardInterrupt at SIGTERM; only the main thread can receive it.

    A process that has heard it ignores further ones to its very end. Children that it forks end at once by theirs, and
    so do ranks: one that waits for the others in a collective would hear nothing, and torchrun wait 30 s for it.
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread() or "RANK" in os.environ:
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop._hear)
    try:
        yield stop
    finally:
        if not stop.heard:
            signal.signal(signal.SIGTERM, before)


def _end_at_once() -> None:
    """Give SIGTERM its own effect in a forked child, whose parent ends it so."""
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), StopSignal):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_end_at_once)
