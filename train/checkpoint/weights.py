"""Weights of a checkpoint, without resuming its run."""

import logging
from typing import Literal, NamedTuple

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage, StorageConfig
from reelweave.train.checkpoint.folder import locate_checkpoint
from reelweave.train.checkpoint.pieces import Tensors, piece_of
from reelweave.train.checkpoint.reading import Shapes, load_, shapes_of
from reelweave.train.checkpoint.state import CheckpointState, read_checkpoint_state
from reelweave.train.distributed.first_rank import is_first_process

_log = logging.getLogger(__name__)

Group = Literal["ema", "model"]
"""EMA of the weights, or the weights after the last step."""


class Weights(NamedTuple):
    """Weights of one checkpoint.

    Attributes:
        storage: storage of the checkpoint.
        folder: folder in the storage.
        state: state of the checkpoint.
        group: selected weights.
    """

    storage: Storage
    folder: str
    state: CheckpointState
    group: Group

    @property
    def uri(self) -> str:
        """URI of the checkpoint's folder."""
        return self.storage.uri(self.folder)

    def load_(self, targets: Tensors, shapes: Shapes | None = None) -> None:
        """Copy the weights into tensors of the same names; reads this rank's part of DTensors alone.

        Args:
            targets: tensors of this rank.
            shapes: shapes of the tensors of all ranks; None: ``targets`` are all.

        Raises:
            RunError: the checkpoint is damaged.
            UsageError: its tensors do not match.
        """
        self.load_group_(self.group, targets, shapes)

    def load_group_(self, group: str, targets: Tensors, shapes: Shapes | None = None) -> None:
        """Copy tensors of another group into those of the same names; arguments and errors as in `load_`."""
        if shapes is None:
            shapes = shapes_of(piece_of(group, name, tensor)[1:4] for name, tensor in targets.items())
        load_(self.storage, self.folder, self.state, group, targets, shapes)


def weights_of(
    named: str,
    group: Group | None = None,
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Weights:
    """Return the weights of a named checkpoint (`located`).

    Args:
        named: name of the checkpoint.
        group: selected weights; None: the EMA if there is one.
        config: configuration of the storage.

    Raises:
        UsageError: there is no checkpoint, or it has no EMA.
        RunError: it is damaged.
    """
    storage, folder = locate_checkpoint(named, config)
    state = read_checkpoint_state(storage, folder)
    if not state.checked and is_first_process():
        _log.warning(
            "%s was written without checksums, by an earlier version: wrong bytes in it cannot be told",
            storage.uri(folder),
        )
    if group is None:
        group = "ema" if "ema" in state.groups else "model"
    if group not in state.groups:
        raise UsageError(f"{storage.uri(folder)} holds no average of the weights; take those of the model")
    return Weights(storage, folder, state, group)
