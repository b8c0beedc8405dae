"""Small files that a person names: read whole, bounded, and never waited for."""

import os
import stat
from pathlib import Path

from loader.errors import UsageError


def read_named(path: Path, most_bytes: int, named: str = "") -> bytes:
    """Read a whole file.

    Args:
        path: of the file; a folder, pipe or device is refused.
        most_bytes: size above which it is refused.
        named: how messages call it, where that is more than its path.

    Raises:
        UsageError: it cannot be read, is no file or too large.
    """
    named = named or str(path)
    try:
        # A pipe would else wait for its writer before it could be told from a file.
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
    """Read a whole file of UTF-8, with or without a byte order mark; see `read_named`.

    Raises:
        UsageError: as `read_named`, or it is no text; names the line.
    """
    data = read_named(path, most_bytes, named)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{named or path}, line {line} is no text in UTF-8; save the file as UTF-8"
        ) from error
