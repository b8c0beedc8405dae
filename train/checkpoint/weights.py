"""The weights of a checkpoint alone, for whoever does not go on with its run."""

from typing import NamedTuple

from loader.storage import Storage, StorageConfig
from train.checkpoint.folder import located
from train.checkpoint.pieces import Tensors, piece_of
from train.checkpoint.reading import load_, shapes_of
from train.checkpoint.state import CheckpointState, read_state


class Weights(NamedTuple):
    """The weights of one checkpoint.

    Attributes:
        storage: of the checkpoint.
        folder: in it.
        state: of the checkpoint.
        group: of tensors: ``ema``, the average, or ``model``.
    """

    storage: Storage
    folder: str
    state: CheckpointState
    group: str

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
        shapes = shapes_of([piece_of(self.group, name, tensor) for name, tensor in targets.items()])
        load_(self.storage, self.folder, self.state, self.group, targets, shapes)


def weights_of(named: str, averaged: bool = True, config: StorageConfig = StorageConfig()) -> Weights:  # noqa: B008 - frozen
    """Those of a checkpoint that somebody names (`located`): their average, where it is wanted and there.

    Raises:
        UsageError: there is no checkpoint.
        RunError: it is damaged.
    """
    storage, folder = located(named, config)
    state = read_state(storage, folder)
    group = "ema" if averaged and "ema" in state.groups else "model"
    return Weights(storage, folder, state, group)
