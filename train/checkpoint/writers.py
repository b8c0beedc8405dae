"""Writers of a checkpoint's pieces, chosen from digests: no rank reads the names that all others hold."""

import json
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch

from reelweave.loader.base.arrays import IntegerArray
from reelweave.train.checkpoint.pieces import Piece
from reelweave.train.distributed.world import World


def pieces_of_rank(local_pieces: Sequence[Piece], world: World) -> list[Piece]:
    """Return the pieces that this rank writes, so that every piece is written once; a collective.

    Args:
        local_pieces: distinct pieces that this rank holds.
        world: all ranks.
    """
    rows = [(*_words(piece), piece.bytes, world.rank) for piece in local_pieces]
    held_N4 = torch.tensor(rows, dtype=torch.int64, device=world.device).reshape(-1, 4)
    all_N4 = world.gather(held_N4).cpu().numpy()
    written_N = choose_writers(all_N4, world.size)
    return [
        piece
        for piece, is_written in zip(local_pieces, written_N[all_N4[:, 3] == world.rank], strict=True)
        if is_written
    ]


def shapes_everywhere(
    local_pieces: Sequence[Piece], world: World
) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Return group, name, dtype and whole shape of all ranks' tensors; a collective.

    Only ranks that differ from all before them, such as pipeline stages, send theirs.
    """
    text = json.dumps(sorted({(piece.group, piece.name, piece.dtype, piece.shape) for piece in local_pieces}))
    digest = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
    digests = world.gather(torch.tensor([[digest]], device=world.device)).flatten().tolist()
    rank_texts = [text]
    if len(set(digests)) > 1:
        first = digests.index(digest) == world.rank
        rank_texts = [rank_text for rank_text in world.gather_text(text if first else "") if rank_text]
    return [
        (group, name, dtype, tuple(shape))
        for rank_text in rank_texts
        for group, name, dtype, shape in json.loads(rank_text)
    ]


def choose_writers(held_N4: IntegerArray, ranks: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Choose the rank that writes each piece, with balanced bytes.

    Pieces that one rank alone holds come first, then large ones; the last ones even out the load.

    Args:
        held_N4: int64 [N, 4]: two words of a piece's digest, its bytes, and a rank that holds it.
        ranks: number of ranks.

    Returns:
        bool [N], True where the rank writes the piece; none writes a piece without bytes.
    """
    order = np.lexsort((held_N4[:, 3], held_N4[:, 1], held_N4[:, 0]))
    order = order[held_N4[order, 2] > 0]
    high, low, sizes, rank_of = held_N4[order].T
    begins = np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))[: len(order)])
    counts = np.diff(np.append(begins, len(order)))
    chosen = np.zeros(len(held_N4), np.bool_)
    alone = begins[counts == 1]
    chosen[order[alone]] = True
    load: list[float] = np.bincount(rank_of[alone], sizes[alone], ranks).tolist()
    several = np.flatnonzero(counts > 1)
    for group in several[np.argsort(-sizes[begins[several]], kind="stable")].tolist():
        begin = int(begins[group])
        holders = rank_of[begin : begin + counts[group]].tolist()
        rank = min(holders, key=load.__getitem__)
        load[rank] += int(sizes[begin])
        chosen[order[begin + holders.index(rank)]] = True
    return chosen


def _words(piece: Piece) -> tuple[int, int]:
    """Return the two words of a digest that no two pieces of a run share."""
    digest = blake2b(repr(tuple(piece)).encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(
        digest[8:], "little", signed=True
    )
