"""Error for a damaged checkpoint file, with the way to recover."""

from reelweave.loader.errors import RunError, first_line
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.names import folder_before


def damage_error(storage: Storage, path: str, error: BaseException) -> RunError:
    """Return an error that names the file and the previous checkpoint.

    Args:
        storage: storage of the checkpoints.
        path: path of the file.
        error: cause.
    """
    folder = path.split("/", maxsplit=1)[0]
    try:
        earlier = folder_before(storage, folder)
    except RunError:  # the storage itself fails, which is a different fault
        earlier = None
    if earlier is None:
        way = f"restore it from a copy, or remove {storage.uri(folder)} to begin again"
    else:
        way = (
            f"remove {storage.uri(folder)} to go on from the checkpoint before it, or name that one:"
            f" {storage.uri(earlier)}"
        )
    return RunError(f"{storage.uri(path)} is damaged ({first_line(error)[:200]}); {way}")
