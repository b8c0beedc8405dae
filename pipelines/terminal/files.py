"""Files named on the command line."""

from pathlib import Path

from reelweave.loader.base.named_file import read_named_text
from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import NoRoomError, UsageError, first_line, lacks_room
from reelweave.pipelines.terminal.console import stderr

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
        UsageError: the file cannot be written; see `output_target`.
        NoRoomError: there is no room for it.
    """
    target = output_target(path, option)
    try:
        with whole_file(target) as aside:
            aside.write_bytes(data)
    except OSError as error:
        raise unwritable(f"{option} {path}".strip(), error) from error


def unwritable(named: str, error: OSError) -> UsageError | NoRoomError:
    """Return the error that says that a file cannot be written: there is no room, or another one is to be named.

    Args:
        named: option and path of the file.
        error: why it cannot be written.
    """
    message = f"{named} cannot be written: {error.strerror or first_line(error)}"
    return NoRoomError(f"{message}; make room") if lacks_room(error) else UsageError(message)


def write_output(path: Path, data: bytes, option: str) -> None:
    """Write a user's output as `write_whole` does, and say if it replaces a file.

    Raises:
        UsageError: the file cannot be written; see `output_target`.
    """
    say_replaced(path)
    write_whole(path, data, option)


def output_target(path: Path, option: str = "") -> Path:
    """Return the path to write a file at: a link's target, so that the link stays.

    Args:
        path: file to write, which may exist.
        option: option that names the file, for messages.

    Raises:
        UsageError: something is there that is no regular file, such as a folder, pipe or device.
    """
    named = f"{option} {path}".strip()
    try:
        target = path.resolve() if path.is_symlink() else path
        if target.exists() and not target.is_file():
            raise UsageError(f"{named} is no file: name a file, not a folder, pipe or device")
    except (OSError, RuntimeError, ValueError) as error:  # a link to itself, a name that is too long
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{named} cannot be written: {reason}") from error
    return target


def say_replaced(name: Path | str, exists: bool | None = None) -> None:
    """Say on stderr that a file is there, which an output replaces.

    Args:
        name: path of the file, or address of an object.
        exists: whether it is there; None to look for the path.
    """
    if Path(name).is_file() if exists is None else exists:
        stderr().print(f"{name} exists and is replaced", markup=False, soft_wrap=True)
