"""Pages of training runs, made again while the runs go on."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.report.clips.media import ClipBytes
from reelweave.pipelines.report.run.numbers import read_runs
from reelweave.pipelines.report.run.page import run_page
from reelweave.pipelines.report.web.files import assets

STATE = "state.json"
"""Path of the page's version, which the page asks for again and again."""

_OF_RUN = re.compile(
    r"runs/(\d{1,4})/((?:validation/step-\d{6,18}/\d{3,4}\.mp4)|(?:timeline/step-\d{6,18}\.html))"
)
_WATCHED = ("", "validation", "timeline", "checkpoints")
_REST = 4
"""Time in which no page is made, in times of what the last one took."""


class RunPages:
    """Page of one or several runs with their videos and timelines, read from their folders and nowhere else.

    The page is made anew when it is asked for and files of a run have changed, at most a fifth of the time. Nothing is
    written.

    Args:
        folders: folders of the runs.
        memory_gib: memory of a GPU, by which to judge a run's peak; None: what its configuration says.
    """

    def __init__(self, folders: Sequence[Path], memory_gib: float | None = None) -> None:
        self._folders, self._memory_gib = list(folders), memory_gib
        self._lock = Lock()
        self._made: dict[str, bytes] = {}
        self._seen, self._next = "", 0.0
        self._own = {**assets(), "favicon.ico": b""}

    def find(self, path: str) -> bytes | ClipBytes | None:
        """Return a file of the page, or where a file of a run lies; see `Pages`."""
        if match := _OF_RUN.fullmatch(path):
            return self._of_run(int(match[1]), match[2])
        if path in self._own:
            return self._own[path]
        with self._lock:
            if path in ("index.html", STATE):
                self._follow()
            return self._made.get(path)

    def _follow(self) -> None:
        """Make the page anew if a run has gone on and enough time has passed."""
        if self._made and time.monotonic() < self._next:
            return
        fingerprint = _fingerprint(self._folders)
        if self._made and fingerprint == self._seen:
            return
        began = time.monotonic()
        try:
            figures = read_runs(self._folders, self._memory_gib)
        except OSError as error:  # a file went while it was read; the next one who asks tries again
            if self._made:
                return
            raise RunError(f"the run cannot be read now: {error}") from error
        page, beside = run_page(figures, _serve_page, live=True)
        content = page.encode()
        version = {"version": hashlib.sha256(content).hexdigest()}
        self._made = {**beside, "index.html": content, STATE: json.dumps(version).encode()}
        now = time.monotonic()
        self._seen, self._next = fingerprint, now + _REST * (now - began)

    def _of_run(self, run_index: int, path: str) -> ClipBytes | None:
        """Return where a file lies; None where there is none, or it is a link that leads out of the run."""
        if run_index >= len(self._folders):
            return None
        folder = self._folders[run_index].resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return None
        storage = open_storage(str(folder), StorageConfig())
        info = storage.stat(path)
        if info is None:
            raise RunError(f"{file} is there no more")
        return ClipBytes(storage, path, 0, info.size, file.suffix[1:], "")


def _serve_page(run_index: int, path: str) -> str:
    return f"runs/{run_index}/{path}"


def _fingerprint(folders: Sequence[Path]) -> str:
    """Return what changes whenever a run has written something."""
    digest = hashlib.sha256()
    for folder in folders:
        for line in _entries(folder):
            digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _entries(folder: Path) -> Iterator[str]:
    for name in _WATCHED:
        try:
            entries = sorted(os.scandir(folder / name), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            try:
                status = entry.stat()
            except OSError:  # gone meanwhile
                continue
            yield f"{name}/{entry.name} {status.st_size} {status.st_mtime_ns}\n"
