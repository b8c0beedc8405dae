"""A wish to stop, sent as a signal: heard at once, obeyed by all ranks behind the same step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""What schedulers and launchers send before they kill; Slurm's ``--signal`` is often set to USR1."""

EXIT_STOPPED = 75
"""Status of a program that was asked to stop and has saved: EX_TEMPFAIL of sysexits.h, call again to go on."""


class Interrupt:
    """Whether somebody asked this process to stop.

    Attributes:
        asked: true from the first signal on.
    """

    def __init__(self) -> None:
        self.asked = False

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - as `signal` calls it
        self.asked = True


@contextmanager
def interrupts() -> Iterator[Interrupt]:
    """Takes note of `SIGNALS` instead of ending on them; outside of the main thread none can be heard."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.signal(number, interrupt._hear) for number in SIGNALS}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
