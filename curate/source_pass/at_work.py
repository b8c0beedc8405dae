"""Progress within sources: workers write how far they have read, the driver shows it until a source is closed.

A source gives no result until it is closed, which may take hours. Notes go to the ledger, since a decoder runs in a
child process on any machine of a cluster. No result depends on them, so a note that cannot be written is skipped.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from reelweave.curate.ledger.files import LEDGER
from reelweave.curate.ledger.ledger import Ledger
from reelweave.loader.errors import RunError

NOTE_EVERY_S = 30.0
_FIRST_NOTE_S = 5.0
"""Seconds of work on a source after which it is named."""
_LOOK_EVERY_S = 10.0
_FOLDER = "at_work/"


class _Watched:
    """File of a source that reports now and then how far it was read."""

    def __init__(self, file: BinaryIO, note: Callable[[int, float], None], every_s: float) -> None:
        self._file, self._note, self._every_s = file, note, every_s
        self._began = time.monotonic()
        self._due = self._began + min(_FIRST_NOTE_S, every_s)

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._every_s
            self._note(self._file.tell(), now - self._began)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def note_progress(
    file: BinaryIO,
    ledger: Ledger,
    identity: str,
    uri: str,
    size: int,
    every_s: float = NOTE_EVERY_S,
    part: str = "",
    begin: int = 0,
) -> Iterator[BinaryIO]:
    """Return the file, which writes a note on its progress to the ledger; the note is removed with the context.

    Args:
        file: File of the source, read mostly forward.
        ledger: Place of the note.
        identity: Identity of the source.
        uri: URI of the source, for people.
        size: Size in bytes of what is read of the source.
        every_s: Seconds between notes; the first one comes sooner.
        part: Description of the part that is worked on, where it is not the whole source.
        begin: Place in the file, about, where that begins.
    """
    name = f"{_FOLDER}{identity}"
    written = False

    def note(position: int, seconds: float) -> None:
        nonlocal written
        written = True
        with suppress(RunError, OSError):
            share = min(1.0, max(0.0, (position - begin) / size)) if size > 0 else 0.0
            ledger.notes.write(name, {"source": uri, "part": part, "share": share, "seconds": seconds})

    try:
        yield cast(BinaryIO, _Watched(file, note, every_s))
    finally:
        if written:
            with suppress(RunError, OSError):
                ledger.storage.delete(f"{LEDGER}{name}.json")


def at_work(ledger: Ledger) -> list[tuple[str, float, float, str]]:
    """Return (source, share read, seconds so far, part) of sources that take long, the longest first."""
    active = []
    with suppress(RunError, OSError):
        for item in ledger.storage.list(f"{LEDGER}{_FOLDER}"):
            note = ledger.notes.read(item.path.removeprefix(LEDGER).removesuffix(".json"))
            if note is not None:  # else closed in between
                active.append((note["source"], note["share"], note["seconds"], note.get("part", "")))
    return sorted(active, key=lambda work: (-work[2], work[0]))


@contextmanager
def watching(ledger: Ledger, show: Callable[[], object], every_s: float = _LOOK_EVERY_S) -> Iterator[None]:
    """Call ``show`` now and then from a thread; remove notes of killed workers before and after."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(every_s):
            show()

    _clear(ledger)
    thread = threading.Thread(target=watch, name="sources at work", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        _clear(ledger)


def _clear(ledger: Ledger) -> None:
    with suppress(RunError, OSError):
        ledger.storage.delete_tree(f"{LEDGER}{_FOLDER}")
