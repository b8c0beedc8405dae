"""The weights of a checkpoint alone, for whoever does not go on with its run."""

import logging
from typing import Literal, NamedTuple

from loader.errors import UsageError
from loader.storage import Storage, StorageConfig
from train.checkpoint.folder import located
from train.checkpoint.pieces import Tensors, piece_of
from train.checkpoint.reading import load_, shapes_of
from train.checkpoint.state import CheckpointState, read_state

_log = logging.getLogger(__name__)

Group = Literal["ema", "model"]
"""The average of the weights over the steps, or the weights behind the last one."""


class Weights(NamedTuple):
    """The weights of one checkpoint.

    Attributes:
        storage: of the checkpoint.
        folder: in it.
        state: of the checkpoint.
        group: which of its weights.
    """

    storage: Storage
    folder: str
    state: CheckpointState
    group: Group

    @property
    def uri(self) -> str:
        """Of the checkpoint."""
        return self.storage.uri(self.folder)

    def load_(self, targets: Tensors) -> None:
        """Copies them into the tensors of these names.

        Raises:
            RunError: the checkpoint is damaged.
            UsageError: it has other tensors.
        """
        self.load_group_(self.group, targets)

    def load_group_(self, group: str, targets: Tensors) -> None:
        """Copies tensors of another group of the checkpoint into those of these names; errors as of `load_`."""
        shapes = shapes_of([piece_of(group, name, tensor) for name, tensor in targets.items()])
        load_(self.storage, self.folder, self.state, group, targets, shapes)


def weights_of(
    named: str,
    group: Group | None = None,
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Weights:
    """Those of a checkpoint that somebody names (`located`).

    Args:
        named: the checkpoint.
        group: which weights; None: their average where there is one.
        config: of the storage.

    Raises:
        UsageError: there is no checkpoint, or no average in it.
        RunError: it is damaged.
    """
    storage, folder = located(named, config)
    state = read_state(storage, folder)
    if not state.checked:
        _log.warning(
            "%s was written without checksums, by an earlier version: wrong bytes in it cannot be told",
            storage.uri(folder),
        )
    if group is None:
        group = "ema" if "ema" in state.groups else "model"
    if group not in state.groups:
        raise UsageError(f"{storage.uri(folder)} holds no average of the weights; take those of the model")
    return Weights(storage, folder, state, group)
