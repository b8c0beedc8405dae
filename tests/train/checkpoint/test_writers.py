"""Every piece of a checkpoint is written by one rank that holds it, and bytes are balanced."""

import json
from pathlib import Path

import numpy as np
import pytest

from reelweave.train.checkpoint.pieces import Piece
from reelweave.train.checkpoint.writers import choose_writers, pieces_of_rank, shapes_everywhere
from reelweave.train.distributed.world import join
from tests.train.ranks import Ranks

RANKS = 4


def piece(name: str, sizes: tuple[int, ...], offset: int = 0, group: str = "model") -> Piece:
    offsets = (offset, *([0] * (len(sizes) - 1)))
    return Piece(group, name, "float32", (64, *sizes[1:]), offsets, sizes)


def held_by(rank: int) -> list[Piece]:
    """Shards of pairs of ranks, whole tensors of all, an empty one, and one of a stage alone."""
    shards = [piece(f"shard{n}", (32, 8), 32 * (rank % 2)) for n in range(6)]
    common = [piece(f"whole{n}", (64, 1 + n), group=group) for n in range(9) for group in ("model", "ema")]
    stage = [piece(f"stage{rank // 2}", (64, 4))]
    return [*shards, *common, Piece("model", "empty", "float32", (0, 4), (0, 0), (0, 4)), *stage]


def choose(out: str) -> None:
    with join("cpu") as world:
        own = held_by(world.rank)
        found = {"written": pieces_of_rank(own, world), "shapes": shapes_everywhere(own, world)}
        equal = shapes_everywhere([piece("x", (64, 2))], world)
    (Path(out) / f"{world.rank}.json").write_text(json.dumps([found, equal]))


def test_every_piece_is_written_once_and_all_ranks_know_all_shapes(ranks: Ranks, tmp_path: Path):
    ended = ranks.run(choose, RANKS, str(tmp_path))
    assert ended.codes == [0] * RANKS, ended.errors
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    lists = [[Piece(*one[:3], *map(tuple, one[3:])) for one in found["written"]] for found, _ in told]
    everything = {one for rank in range(RANKS) for one in held_by(rank) if one.bytes}
    assert sorted(one for own in lists for one in own) == sorted(everything)
    for rank, own in enumerate(lists):
        assert set(own) <= set(held_by(rank))
    loads = [sum(one.bytes for one in own) for own in lists]
    assert max(loads) - min(loads) <= max(one.bytes for one in everything)
    wanted = {(one.group, one.name, one.dtype, one.shape) for rank in range(RANKS) for one in held_by(rank)}
    for found, equal in told:
        assert {(*one[:3], tuple(one[3])) for one in found["shapes"]} == wanted
        assert equal == [["model", "x", "float32", [64, 2]]]


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_many_ranks_share_the_bytes_of_what_they_all_hold(shards: int):
    ranks, names = 16, 50
    sizes = 1 + np.arange(names) * 7919 % 1000
    rows = [(rank % shards, name, int(sizes[name]), rank) for rank in range(ranks) for name in range(names)]
    held = np.array(rows, dtype=np.int64)
    chosen = choose_writers(held, ranks)
    assert len({tuple(row) for row in held[chosen, :2]}) == chosen.sum() == shards * names
    loads = np.bincount(held[chosen, 3], held[chosen, 2], ranks)
    assert loads.max() - loads.min() <= sizes.max()


def test_no_piece_makes_no_writer():
    assert choose_writers(np.zeros((0, 4), np.int64), 3).tolist() == []
    assert choose_writers(np.array([[1, 1, 0, 0]]), 3).tolist() == [False]
