"""Files that sampled videos follow from, as one digest."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.checksums import unchanged_file_sha256
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.lora import adapters_files
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World
from reelweave.train.models.published.experts import other_expert
from reelweave.train.models.published.formats.whole import weight_files
from reelweave.train.sampling.trained.frozen_parts import frozen_parts, published_part
from reelweave.train.sampling.trained.load import Trained


def sources_sha256(
    world: World,
    trained: Trained,
    checkpoints: tuple[str | None, str | None],
    loras: tuple[Path | None, Path | None],
    storage: StorageConfig,
) -> str:
    """Return the digest of weights, adapters, VAE and text encoders; of a checkpoint only its state, with checksums.

    A collective; the first rank reads the files.

    Args:
        world: all ranks.
        trained: the model.
        checkpoints: checkpoints of the model and of its other expert; None: there is none.
        loras: their adapters.
        storage: configuration of the storage.

    Raises:
        UsageError: a part is missing.
        RunError: a file cannot be read.
    """

    def read() -> str:
        parts = "\n".join(_parts(trained, checkpoints, loras, storage))
        return hashlib.sha256(parts.encode()).hexdigest()

    digest: str = on_first(world, read)
    return digest


def _parts(
    trained: Trained,
    checkpoints: tuple[str | None, str | None],
    loras: tuple[Path | None, Path | None],
    storage: StorageConfig,
) -> Iterator[str]:
    config, model = trained.config, trained.config.model
    for named in checkpoints:
        yield "" if named is None else weights_of(named, None, storage).state.encode().decode()
    for lora in loras:
        yield "" if lora is None else " ".join(map(unchanged_file_sha256, adapters_files(lora)))
    if isinstance(model, DiffusersConfig):
        models = [model] if checkpoints[0] is None or config.lora else []
        models += [other_expert(model)] if trained.experts and checkpoints[1] is None else []
        for published in models:
            has_own = published.weights is None
            part = published_part(published.name, published.subfolder, "train.model.name", has_own)
            yield json.dumps(part.files, sort_keys=True)
            if published.weights is not None:
                yield " ".join(map(unchanged_file_sha256, weight_files(published.weights, "model.weights")))
    for key, part in sorted(frozen_parts(config.modules).items()):
        yield f"{key} {json.dumps(part.files, sort_keys=True)}"
