"""Records of a file of JSON lines that grows, each read once."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from reelweave.pipelines.report.run.lines import MAX_LINE, as_record, without_blocking


class FollowedRecords:
    """Reader of the lines behind those it has read before.

    A run that resumes writes its file anew, without the steps it repeats. Then all lines are read again.

    Args:
        path: file of JSON lines; it may not exist yet.

    Attributes:
        passes: number of times that the file was read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._at = 0
        self.passes = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of new whole lines; a line that is no object is skipped."""
        with suppress(FileNotFoundError), open(self._path, "rb", opener=without_blocking) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return
            if (status.st_dev, status.st_ino) != self._file or status.st_size < self._at:
                self._file, self._at = (status.st_dev, status.st_ino), 0
                self.passes += 1
            file.seek(self._at)
            # A longer line comes in pieces, each of which is no record.
            for line in iter(partial(file.readline, MAX_LINE), b""):
                if len(line) < MAX_LINE and not line.endswith(b"\n"):
                    return  # being written
                self._at += len(line)
                if (record := as_record(line)) is not None:
                    yield record
