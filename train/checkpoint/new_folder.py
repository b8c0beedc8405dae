"""New folder that an export writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from reelweave.loader.base.whole_file import whole_folder
from reelweave.loader.errors import UsageError, first_line


def check_new(path: Path) -> None:
    """Check that nothing is there yet.

    Raises:
        UsageError: something is.
    """
    if path.exists():
        raise UsageError(f"{path} exists; export into a new folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty hidden folder that becomes ``path`` when the body, which only writes into it, succeeds.

    Its files have the permissions that new files have here.

    Raises:
        UsageError: something is there, or it cannot be written; then nothing is left.
    """
    check_new(path)
    try:
        with whole_folder(path) as aside:
            yield aside
            # safetensors' own writer makes files that their owner alone can read.
            usual = aside.stat().st_mode & 0o666
            for file in aside.rglob("*"):
                if file.is_file():
                    file.chmod(usual)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UsageError(
            f"{path} cannot be written: {reason}; name another folder, or make room there"
        ) from error
