"""One of four processes that decode the same latents, in groups of one to four of them.

Findings go to OUT/RANK.json: whether the first rank's videos have the bits of serial tiling, by case.
"""

import json
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from reelweave.loader.errors import RunError
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.distributed.world import World
from reelweave.train.models.published.vae import DiffusersVAE
from reelweave.train.sampling.decode.tiled import TiledDecoder
from tests.train.references import divided
from tests.train.sampling.decode.decode_cases import CASES, cut_small, latents_of

IMPORTED_FIRST = (
    "diffusers.models.autoencoders",
    "reelweave.train.models.published.vae",
    "reelweave.train.sampling.decode.tiled",
)
CPU = torch.device("cpu")
SHARED = ("wan", "hunyuan", "cosmos")
"""Families whose tiles are shared; others differ in what decodes a tile."""
GROUPS = ([3], [2, 0], [1, 2, 3], [0, 1, 2, 3])


def decode(out: str) -> None:
    """All families, on all groups; then a rank that fails."""
    dist.init_process_group(dist.get_default_backend_for_device("cpu"), timeout=timedelta(seconds=60))
    rank, found = dist.get_rank(), {}
    groups = {len(ranks): (ranks, dist.new_group(ranks)) for ranks in GROUPS}
    for family in SHARED:
        made = DiffusersVAE(
            DiffusersVAEConfig.model_validate_json((Path(out) / f"{family}.json").read_text())
        )
        cut_small(made.vae)
        alone = TiledDecoder(made, World(0, 1, CPU))
        serial = divided({size: partial(alone, latents_of(made, size)) for size in CASES[family]})
        for count, (ranks, group) in groups.items():
            # Groups of any number of ranks with one family, three ranks with the others.
            if rank not in ranks or (family != SHARED[0] and count != 3):
                continue
            world = World(dist.get_group_rank(group, rank), count, CPU, group)
            for size in CASES[family]:
                x = latents_of(made, size)
                for decoding in {count, (count + 1) // 2}:
                    video = TiledDecoder(made, world, ranks=decoding)(x)
                    same = video is not None and torch.equal(video, serial[size])
                    found[f"{family} {size} on {decoding} of {count}"] = (
                        same if world.rank == 0 else video is None
                    )
    if rank == 2:
        made.decode_tile = made.decode = _fail
    try:
        TiledDecoder(made, World(rank, 4, CPU))(latents_of(made, (2, 9, 7)))
    except RunError as error:
        found["error"] = str(error)
    (Path(out) / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _fail(_: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("no memory for a tile")
