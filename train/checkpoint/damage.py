"""The error for a file of a checkpoint that cannot be used, and the way on from it."""

from loader.errors import RunError, first_line
from loader.storage import Storage
from train.checkpoint.names import folder_before


def damaged(storage: Storage, path: str, error: BaseException) -> RunError:
    """Return the error that names the file and the checkpoint before.

    Args:
        storage: of the checkpoints.
        path: of the file.
        error: what is wrong with it.
    """
    folder = path.split("/", maxsplit=1)[0]
    try:
        earlier = folder_before(storage, folder)
    except RunError:  # the place itself fails, which is another fault than this one
        earlier = None
    if earlier is None:
        way = f"restore it from a copy, or remove {storage.uri(folder)} to begin again"
    else:
        way = (
            f"remove {storage.uri(folder)} to go on from the checkpoint before it, or name that one:"
            f" {storage.uri(earlier)}"
        )
    return RunError(f"{storage.uri(path)} is damaged ({first_line(error)[:200]}); {way}")
