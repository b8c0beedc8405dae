"""One call that opens what a training script of other origin reads in the place of its DataLoader."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reelweave.loader.base.argument_types import path_text, whole_number
from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.yaml_text import MAX_BYTES, read_yaml
from reelweave.loader.blend import open_source
from reelweave.loader.errors import UsageError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import StorageConfig
from reelweave.loader.stream.loaders.batch_loader import BatchLoader
from reelweave.loader.stream.loaders.training_loop import TrainingLoop, keep_state, read_loop
from reelweave.loader.stream.video_stream import VideoStream


def open_batches(
    uri: str | os.PathLike[str],
    config: StreamConfig | str | os.PathLike[str],
    loop: Any = None,
    *,
    convert: Callable[[Any], Any] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    microbatches: int | None = None,
    state: dict[str, Any] | None = None,
    processes: int = 0,
    storage: StorageConfig | None = None,
) -> BatchLoader:
    """Open a dataset or blend as batches for a loop that has a DataLoader.

    Args:
        uri: dataset, or blend file.
        config: configuration of the stream, or a YAML file of its keys (`StreamConfig`).
        loop: accelerate's Accelerator, the Trainer of Lightning or transformers, or Megatron's parallel_state. Rank and
            number of ranks are then those of it; batches a step and device too, where it knows them. The checkpoints
            of the first three hold the loader's state.
        convert: makes of a batch what the loop expects, such as a dict of tensors.
        rank: data-parallel rank, without `loop`; None is 0.
        world_size: number of data-parallel ranks, without `loop`; None is 1.
        microbatches: batches of a rank in an optimizer step; None is what `loop` or else the configuration says.
        state: state of such a loader, on any number of ranks, to go on from; None begins anew.
        processes: number of worker processes that read and decode; 0 uses threads of this process.
        storage: timeouts, limits and permissions; None for the defaults.

    Raises:
        UsageError: the configuration is wrong, `loop` is of another kind or given with what it says itself, or ranks
            would have different numbers of batches (`BatchLoader`).
    """
    config = config if isinstance(config, StreamConfig) else _read_config(Path(path_text(config, "config")))
    facts = _facts(loop, rank, world_size, microbatches)
    if facts.microbatches is not None:
        config = _with_microbatches(config, facts.microbatches)
    stream = VideoStream(open_source(uri, storage), config, facts.rank, facts.world_size)
    loader = BatchLoader(stream, convert, facts.device, processes)
    if state is not None:
        loader.load_state_dict(state)
    if loop is not None:
        keep_state(loop, loader)
    return loader


def _facts(loop: Any, rank: int | None, world_size: int | None, microbatches: int | None) -> TrainingLoop:
    """Return what is known of the loop.

    Raises:
        UsageError: something is said twice.
    """
    if loop is None:
        return TrainingLoop(rank or 0, 1 if world_size is None else world_size, microbatches, None)
    facts = read_loop(loop)
    if rank is not None or world_size is not None or None not in (microbatches, facts.microbatches):
        raise UsageError(
            "rank, world_size and microbatches are given twice: leave out those that loop says itself"
        )
    return facts if microbatches is None else facts._replace(microbatches=microbatches)


def _with_microbatches(config: StreamConfig, microbatches: int) -> StreamConfig:
    count = whole_number(microbatches, "microbatches", "give the number of batches in a step")
    try:
        return StreamConfig.model_validate(config.model_dump() | {"microbatches": count})
    except ValidationError as error:
        raise UsageError(f"microbatches is {count}: {error.errors()[0]['msg']}") from error


def _read_config(path: Path) -> StreamConfig:
    """Return the configuration of a stream in a YAML file.

    Raises:
        UsageError: the file is missing or no such configuration; names the file, the line and the key.
    """
    document = read_yaml(read_named(path, MAX_BYTES), str(path))
    if not isinstance(document.values, dict):
        raise UsageError(f"{path} holds no mapping of keys to values; it begins with buckets:")
    try:
        return StreamConfig.model_validate(document.values)
    except ValidationError as error:
        first = error.errors()[0]
        key, line = ".".join(map(str, first["loc"])), document.line(first["loc"])
        where = f"{path}, line {line}" if line else str(path)
        raise UsageError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}") from error
