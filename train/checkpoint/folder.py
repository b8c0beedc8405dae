"""Checkpoints in a run's folder: discovery and retention."""

from collections.abc import Iterable

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage, StorageConfig, is_absent, open_storage
from reelweave.train.checkpoint.names import STATE, folder_of, steps_of


def latest(storage: Storage) -> int | None:
    """Return the highest step of a complete checkpoint, or None."""
    return max(steps_of(storage)[0], default=None)


def locate_checkpoint(named: str, config: StorageConfig = StorageConfig()) -> tuple[Storage, str]:  # noqa: B008 - frozen
    """Locate a named checkpoint: its storage, and its folder there.

    Args:
        named: folder or prefix of a run or of its checkpoints, for the newest one, or of a single checkpoint.
        config: configuration of the storage.

    Raises:
        UsageError: no checkpoint is there.
    """
    storage = open_storage(named, config)
    if storage.stat(STATE) is not None:
        above, _, folder = storage.root.rpartition("/")
        return open_storage(above or "/", config), folder
    for root in (storage, open_storage(f"{named}/checkpoints", config)):
        if (step := latest(root)) is not None:
            return root, folder_of(step)
    if is_absent(storage):
        raise UsageError(f"{named} holds no checkpoint: it does not exist; check the path")
    raise UsageError(f"{named} holds no checkpoint; give the folder of a run, or its checkpoints/step-000500")


def all_of(named: str, config: StorageConfig = StorageConfig()) -> tuple[Storage, list[str]]:  # noqa: B008 - frozen
    """List the checkpoints of a named run, oldest first, or a single named one; empty without any.

    Args:
        named: name as in `locate_checkpoint`.
        config: configuration of the storage.
    """
    storage = open_storage(named, config)
    if storage.stat(STATE) is not None:
        root, folder = locate_checkpoint(named, config)
        return root, [folder]
    for root in (storage, open_storage(f"{named}/checkpoints", config)):
        if steps := steps_of(root)[0]:
            return root, [folder_of(step) for step in sorted(steps)]
    return storage, []


def expendable(steps: Iterable[int], keep_last: int, keep_every: int | None) -> list[int]:
    """Return the checkpoints to remove: neither among the newest nor a multiple of ``keep_every``."""
    older = sorted(steps)[:-keep_last]
    return [step for step in older if not keep_every or step % keep_every]


def prune(storage: Storage, keep_last: int, keep_every: int | None) -> None:
    """Remove expendable checkpoints, each one's state first, and unfinished ones."""
    steps, _ = steps_of(storage)
    for step in expendable(steps, keep_last, keep_every):
        storage.delete(f"{folder_of(step)}/{STATE}")
    sweep(storage)


def sweep(storage: Storage) -> None:
    """Remove unfinished checkpoints; call it only while no rank writes one."""
    for step in sorted(steps_of(storage)[1]):
        storage.delete_tree(f"{folder_of(step)}/")


def drop_unfinished(storage: Storage, step: int) -> None:
    """Remove the parts of one checkpoint, which no rank writes any more, unless it is whole."""
    if storage.stat(f"{folder_of(step)}/{STATE}") is None:
        storage.delete_tree(f"{folder_of(step)}/")
