"""Files named on the command line."""

from pathlib import Path

from reelweave.loader.base.named_file import read_named_text
from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import UsageError

_MOST_BYTES = 64 << 20


def read_text(path: Path, option: str = "") -> str:
    """Return the text of a whole file.

    Args:
        path: file to read.
        option: option that names the file, for messages.

    Raises:
        UsageError: the file cannot be read, is too large or no text.
    """
    return read_named_text(path, _MOST_BYTES, f"{option} {path}".strip())


def write_whole(path: Path, data: bytes, option: str = "") -> None:
    """Write a file atomically: whole or not at all.

    Args:
        path: file to write; its folder is created.
        data: content of the file.
        option: option that names the file, for messages.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        with whole_file(path) as aside:
            aside.write_bytes(data)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}".strip()) from error
