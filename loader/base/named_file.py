"""Small files named by users: read whole, with bounded size and without blocking."""

import io
import os
import stat
from pathlib import Path

from reelweave.loader.errors import UsageError


def read_named(path: Path, most_bytes: int, named: str = "") -> bytes:
    """Return the content of a file.

    Args:
        path: path of the file; folders, pipes and devices are refused.
        most_bytes: maximum size in bytes.
        named: name of the file in messages; default: its path.

    Raises:
        UsageError: the path is unreadable, no regular file, or too large.
    """
    named = named or str(path)
    try:
        # Opening a pipe would block before its type could be checked.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{named} is no file: give a file, not a folder, pipe or device")
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{named} cannot be read: {reason}") from error
    if len(data) > most_bytes:
        size = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes >> 10} KiB"
        raise UsageError(f"{named} is larger than {size}; give a smaller file")
    return data


def read_named_text(path: Path, most_bytes: int, named: str = "") -> str:
    """Return the content of a UTF-8 file, with or without a byte order mark; see `read_named`.

    Raises:
        UsageError: see `read_named`; also if a line is not UTF-8, naming the line.
    """
    data = read_named(path, most_bytes, named)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{named or path}, line {line} is no text in UTF-8; save the file as UTF-8"
        ) from error


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, which end in \n, \r\n or \r.

    `str.splitlines` would also divide at characters such as U+2028, which a JSON string may hold as they are.
    """
    return [line.removesuffix("\n") for line in io.StringIO(text, newline=None)]
