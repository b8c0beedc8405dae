"""Ranks of several runs of published models, and of their start."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from reelweave.train.config.run import TrainConfig
from reelweave.train.distributed.world import join
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.bundle import Bundle
from reelweave.train.parallel.layout import place
from reelweave.train.parallel.layouts import pieces
from reelweave.train.parallel.mesh import DATA, Mesh, Ranks
from tests.train.allocated import Loading
from tests.train.clips import ClipStream

IMPORTED_FIRST = ("diffusers.models.transformers", "diffusers.models.autoencoders", "peft")


def train_all(folder: str) -> None:
    """Trains in a folder that holds the configuration of each run as NAME.json."""
    out = Path(folder)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join("cpu"):
        for path in sorted(out.glob("*.json")):
            config = TrainConfig.model_validate_json(path.read_bytes())
            mesh = Mesh.of(config.parallel, world_size)
            data_rank = next(ranks.index(rank) for ranks in mesh.partition(DATA) if rank in ranks)
            # Rank 0 has two microbatches where the other has one: with FSDP the other idles through one.
            sizes = (1, 1) if data_rank < mesh.degree(DATA) - 1 else ()
            stream = ClipStream(data_rank, mesh.degree(DATA), sizes=sizes)
            Trainer(config, stream, out / path.stem).run()


def hashes(bundle: Bundle) -> dict[str, str]:
    """A hash of each whole tensor of the denoiser, by name; a collective if it is sharded."""
    named = dict(bundle.dit.named_parameters()) | dict(bundle.dit.named_buffers())
    wholes = pieces.gather_tensors({name: tensor.detach() for name, tensor in named.items()})
    return {
        name: hashlib.sha256(f"{whole.dtype} ".encode() + whole.float().numpy().tobytes()).hexdigest()
        for name, whole in wholes.items()
    }


def held(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the memory of tensors: FSDP pads shards that ranks do not divide evenly."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def load_all(folder: str) -> None:
    """Loads the published model of each NAME.json, and writes what this rank holds and read of it."""
    out, found = Path(folder), {}
    torch.set_num_threads(1)
    with join("cpu") as world:
        for path in sorted(out.glob("*.json")):
            config = TrainConfig.model_validate_json(path.read_bytes())
            with Loading() as memory:
                bundle = place(config.step, Ranks.of(config.parallel, world))
            own = {name: pieces.local(weight) for name, weight in bundle.dit.named_parameters()}
            found[path.stem] = {
                "peak": memory.peak,
                "read": memory.read_bytes,
                "kept": held((*own.values(), *bundle.dit.buffers())),
                "published": sum(weight.numel() for name, weight in own.items() if ".lora_" not in name),
                "hashes": hashes(bundle),
            }
    (out / f"rank{os.environ['RANK']}.loaded").write_text(json.dumps(found))
