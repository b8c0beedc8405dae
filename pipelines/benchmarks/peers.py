"""Other readers of samples, for `bench loader`: each function opens the dataset with one and returns its epoch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from reelweave.loader.dataset import open_dataset

Epoch = Callable[[], int]
"""Reads every clip once; returns their bytes."""


def installed_peers(folder: Path, scratch: Path) -> dict[str, Epoch]:
    """Return the installed readers by name.

    Args:
        folder: folder of the dataset.
        scratch: empty folder for readers with a format of their own.
    """
    peers: dict[str, Epoch] = {}
    if _installed("webdataset"):
        peers["webdataset"] = webdataset(sorted(folder.glob("shards/*.tar")))
    if _installed("megatron.energon"):
        peers["energon"] = energon(folder)
    if _installed("streaming"):
        peers["mosaic"] = mosaic(folder, scratch)
    return peers


def webdataset(shards: Iterable[Path]) -> Epoch:
    """Return an epoch of webdataset that reads the shards in order."""
    import webdataset

    dataset = webdataset.WebDataset([str(path) for path in shards], shardshuffle=False)
    return lambda: sum(len(sample["mp4"]) for sample in dataset)


def energon(folder: Path) -> Epoch:
    """Megatron-Energon as for validation: in order, no worker processes, nothing decoded, no batches."""
    from megatron.energon import (
        Cooker,
        DefaultTaskEncoder,
        Sample,
        WorkerConfig,
        basic_sample_keys,
        get_loader,
        get_val_dataset,
    )
    from megatron.energon.task_encoder import stateless

    # The least that Energon needs to know of a clip: its bytes, as they are.
    @dataclass
    class Clip(Sample):  # type: ignore[misc]
        mp4: bytes

    def cook(sample: dict[str, bytes]) -> Clip:
        return Clip(**basic_sample_keys(sample), mp4=sample["mp4"])

    class Encoder(DefaultTaskEncoder):  # type: ignore[misc]
        cookers = (Cooker(stateless(cook)),)
        decoder = None

    dataset = get_val_dataset(
        str(folder),
        split_part="train",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        task_encoder=Encoder(),
    )
    loader = get_loader(dataset)
    return lambda: sum(len(sample.mp4) for sample in loader)


def mosaic(folder: Path, scratch: Path) -> Epoch:
    """mosaicml-streaming, in order, from a copy in its own format (MDS) with shards of the same size."""
    from streaming import MDSWriter, StreamingDataset

    dataset = open_dataset(folder)
    with MDSWriter(columns={"mp4": "bytes"}, out=str(scratch), size_limit=48_000_000) as writer:
        for row in range(dataset.index.num_rows):
            writer.write({"mp4": dataset.read_member(row, "mp4")})
    streaming = StreamingDataset(local=str(scratch), batch_size=1, shuffle=False)
    return lambda: sum(len(sample["mp4"]) for sample in streaming)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False
