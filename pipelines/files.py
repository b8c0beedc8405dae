"""Files that a person names on the command line."""

from pathlib import Path

from loader.errors import UsageError

_MOST_BYTES = 256 * 2**20


def read_text(path: Path, option: str = "") -> str:
    """The whole of a text file.

    Args:
        path: of the file.
        option: that names it, for messages.

    Raises:
        UsageError: it cannot be read, is too large or no text.
    """
    named = f"{option} {path}".strip()
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{named} has more than {_MOST_BYTES >> 20} MiB; give a smaller file")
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{named} cannot be read: {reason}") from error
