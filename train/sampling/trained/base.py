"""Base weights under adapters: which ones a run was trained on, and whether they are the same now."""

import hashlib
import logging
from collections.abc import Callable

from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.folder import locate_checkpoint
from reelweave.train.checkpoint.names import STATE
from reelweave.train.checkpoint.state import BaseWeights
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.parts import ModulesConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World
from reelweave.train.models.published.folder import description, part_folder
from reelweave.train.models.published.weights import PublishedModel

_log = logging.getLogger(__name__)


def base_weights(modules: ModulesConfig) -> BaseWeights | None:
    """Return the weights under a run's adapters as they are now; None without adapters.

    Reads all files of a published model; of a run only the state of its checkpoint, which holds checksums.

    Raises:
        UsageError: they are missing.
        RunError: the checkpoint is damaged.
    """
    if modules.lora is None:
        return None
    model = modules.model
    if isinstance(model, DiffusersConfig):
        folder = part_folder(model.name, model.subfolder, "model.name", weights=model.weights is None)
        source = str(description(folder, "model.name").get("_class_name"))
        name = ", ".join(str(part) for part in (model.name, model.subfolder, model.weights) if part)
        return BaseWeights(name=name, sha256=PublishedModel(model, folder, source).sha256())
    assert modules.lora.checkpoint is not None, "see `TrainConfig`"
    saved = weights_of(modules.lora.checkpoint)
    state = saved.storage.read(f"{saved.folder}/{STATE}")
    return BaseWeights(name=saved.uri, sha256=hashlib.sha256(state).hexdigest())


def read_base(world: World, read: Callable[[], BaseWeights | None]) -> BaseWeights | None:
    """Return base weights that the first rank reads, on all ranks; a collective."""

    def read_values() -> dict[str, str] | None:
        base = read()
        return None if base is None else base.model_dump()

    values = on_first(world, read_values)
    return None if values is None else BaseWeights.model_validate(values)


def keep_base(lora: LoraConfig | None, base: BaseWeights | None) -> LoraConfig | None:
    """Return adapters whose ``checkpoint`` is the one that they were trained on, if it is still there.

    The run that it names may have later checkpoints by now.

    Args:
        lora: configuration of the adapters; None: the run has none.
        base: weights under them; None: unknown.
    """
    if base is None or lora is None or lora.checkpoint is None:
        return lora
    try:
        locate_checkpoint(base.name)
    except UsageError:
        return lora
    return lora.model_copy(update={"checkpoint": base.name})


def check_base(uri: str, saved: BaseWeights | None, now: BaseWeights | None) -> None:
    """Check that adapters meet the base weights that they were trained on.

    Args:
        uri: checkpoint of the adapters.
        saved: base weights that it names; None: it is of an earlier version, and goes on with a warning.
        now: base weights at hand; None: the run has no adapters.

    Raises:
        UsageError: they are others.
    """
    if now is None:
        return
    if saved is None:
        _log.warning(
            "%s is of an earlier version, which did not store on which base weights its adapters were trained: whether"
            " %s is the same cannot be told",
            uri,
            now,
        )
    elif saved.sha256 != now.sha256:
        raise UsageError(
            f"{uri} holds adapters that were trained on {saved}; the base weights are {now} now, and other weights."
            " Put the old ones back, or train new adapters into another folder"
        )
