"""Stop signals, which all ranks obey after the same step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals of schedulers and launchers before a kill; Slurm's ``--signal`` is often set to USR1."""

EXIT_STOPPED = 75
"""Exit status after a requested stop with a saved state: EX_TEMPFAIL of sysexits.h, run again to resume."""


class Interrupt:
    """Stop request to this process.

    Attributes:
        asked: True after the first signal.
    """

    def __init__(self) -> None:
        self.asked = False

    def _hear(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as `signal` calls it
        self.asked = True


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Record `SIGNALS` instead of ending on them; only the main thread can receive any."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {signum: signal.signal(signum, interrupt._hear) for signum in SIGNALS}
    try:
        yield interrupt
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
