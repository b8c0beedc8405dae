"""Processor seconds and memory of finding what one of many ranks reads of a checkpoint.

python -m tests.bench.checkpoint_headers --ranks 1024 --tensors 1000

Each rank of the run that wrote it holds a shard of every tensor (FSDP). Each way runs in a process of its own. What the
ranks send each other is made up here, and its transport is not counted.
"""

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.checksums import BLOCK
from reelweave.train.checkpoint.directory import ROWS, Wanted
from reelweave.train.checkpoint.files import Header, header, in_order, pieces_in, sharding
from reelweave.train.checkpoint.pieces import Piece

ROW = 64


def shards(rank: int, ranks: int, tensors: int) -> list[Piece]:
    return [
        Piece("model", f"blocks.{n}.mlp.0.weight", "float32", (ranks, ROW), (rank, 0), (1, ROW))
        for n in range(tensors)
    ]


def header_of(rank: int, ranks: int, tensors: int) -> Header:
    pieces = in_order(shards(rank, ranks, tensors))
    sums = {piece.name: f"{rank * 7919 + n:08x}" for n, piece in enumerate(pieces)}
    data = header(pieces, sharding(pieces) | {"reelweave_crc32": json.dumps(sums)})
    return Header(len(data) + sum(piece.bytes for piece in pieces), data[8:])


def parsed(rank: int, ranks: int, tensors: int) -> list:
    storage = open_storage("/tmp")
    return pieces_in(storage, f"part-{rank}", "model", header_of(rank, ranks, tensors), True)


def every_list(ranks: int, tensors: int) -> int:
    """All ranks' headers in one rank, as before."""
    found: dict[str, list] = {}
    for rank in range(ranks):
        for one in parsed(rank, ranks, tensors):
            found.setdefault(one.piece.name, []).append(one)
    return sum(1 for stored in found.values() for one in stored if one.piece.offsets[0] == ranks // 2)


class Shard:
    """A DTensor as far as `piece_of` looks."""

    def __init__(self, piece: Piece) -> None:
        self.shape, self.dtype, self.piece = torch.Size(piece.shape), torch.float32, piece

    def __create_chunk_list__(self) -> list["Shard"]:
        return [self]

    @property
    def offsets(self) -> tuple[int, ...]:
        return self.piece.offsets

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.piece.sizes


def own_share(ranks: int, tensors: int) -> int:
    """This rank's share of the headers, and rows of all."""
    rank = ranks // 2
    own = shards(rank, ranks, tensors)
    shapes = {one.name: (one.dtype, one.shape) for one in own}
    wanted = Wanted(
        "model", {one.name: Shard(one) for one in own}, shapes, [f"part-{n}" for n in range(ranks)]
    )
    stored = parsed(rank, ranks, tensors)
    at_once = max(1, ROWS // ranks)
    for begin in range(0, len(stored), at_once):
        rows, blocks = wanted.rows(stored[begin : begin + at_once])
        said = np.repeat(rows[None], ranks, axis=0)
        said[:, :, 1] = said[:, :, 4] = np.arange(ranks)[:, None]
        wanted.take(said.reshape(-1, rows.shape[1]), np.tile(blocks, ranks))
    assert wanted.gap() is None
    return sum(map(len, wanted.found.values()))


def child(way: Callable[[int, int], int], ranks: int, tensors: int, said: multiprocessing.Queue) -> None:
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = way(ranks, tensors)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert found == tensors, found
    said.put((time.process_time() - began, (peak - before) / 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--every", type=int, help="ranks of the way before, where 1,024 take too much memory")
    asked = parser.parse_args()
    assert ROW * 4 < BLOCK
    context = multiprocessing.get_context("fork")
    for way, ranks in ((every_list, asked.every or asked.ranks), (own_share, asked.ranks)):
        said = context.Queue()
        process = context.Process(target=child, args=(way, ranks, asked.tensors, said))
        process.start()
        seconds, mib = said.get(timeout=540)
        process.join()
        print(f"{way.__name__}: {ranks} parts of {asked.tensors} tensors: {seconds:.1f} s, {mib:.0f} MiB")


if __name__ == "__main__":
    main()
