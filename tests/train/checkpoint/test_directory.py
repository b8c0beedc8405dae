"""The pieces that a rank keeps of rows that all ranks exchange are those that it finds in all headers."""

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from reelweave.train.checkpoint.directory import Wanted
from reelweave.train.checkpoint.files import StoredPiece
from reelweave.train.checkpoint.pieces import Piece, overlap

SHAPES = {"matrix": ("float32", (12, 10)), "scalar": ("float32", ()), "vector": ("bfloat16", (9,))}


@dataclass
class Shard:
    """A DTensor as far as its place goes."""

    dtype: torch.dtype
    shape: torch.Size
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __create_chunk_list__(self):
        return [self]


def cut(name: str, dimension: int, parts: int) -> list[Piece]:
    """A tensor in parts along one of its dimensions."""
    dtype, shape = SHAPES[name]
    if not shape:
        return [Piece("model", name, dtype, shape, (), ())]
    ends = [shape[dimension] * n // parts for n in range(parts + 1)]
    boxes = []
    for begin, end in itertools.pairwise(ends):
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[dimension], sizes[dimension] = begin, end - begin
        boxes.append(Piece("model", name, dtype, shape, tuple(offsets), tuple(sizes)))
    return boxes


def wanted_of(boxes: list[Piece]) -> Wanted:
    targets = {
        box.name: Shard(box.torch_dtype, torch.Size(box.shape), box.offsets, box.sizes) for box in boxes
    }
    return Wanted("model", targets, SHAPES, ["part-0", "part-1", "part-2"])


def stored(draw: random.Random) -> list[StoredPiece]:
    pieces = [*cut("matrix", 0, 5), *cut("vector", 0, 2), *cut("scalar", 0, 1)]
    draw.shuffle(pieces)
    return [
        StoredPiece(piece, f"part-{n % 3}", 1000 + n, [f"{draw.getrandbits(32):08x}" for _ in range(n % 4)])
        for n, piece in enumerate(pieces)
    ]


def taken(wanted: Wanted, pieces: list[StoredPiece], at_once: int) -> dict[str, list[StoredPiece]]:
    for begin in range(0, len(pieces), at_once):
        wanted.take(*wanted.rows(pieces[begin : begin + at_once]))
    return wanted.found


@pytest.mark.parametrize("at_once", [1, 3, 99])
def test_what_overlaps_is_kept_as_it_was_written(at_once):
    pieces = stored(random.Random(at_once))
    for boxes in zip(cut("matrix", 1, 3), cut("vector", 0, 3), strict=True):
        own = [*boxes, *cut("scalar", 0, 1)]
        wanted = wanted_of(own)
        found = taken(wanted, pieces, at_once)
        for box in own:
            assert found[box.name] == [
                one for one in pieces if one.piece.name == box.name and overlap(one.piece, box)
            ]
        assert wanted.gap() is None


def test_a_gap_and_a_piece_twice_are_found_where_they_are_wanted():
    pieces = [StoredPiece(piece, "part-0", 0) for piece in cut("matrix", 0, 4)]
    above, below = (wanted_of([box]) for box in cut("matrix", 0, 2))
    twice = [pieces[0], pieces[1], pieces[2], pieces[2]]  # as many values as the tensor has
    for wanted in (above, below):
        taken(wanted, twice, 9)
    assert above.gap() is None
    assert below.gap() == "matrix"
    missing = wanted_of(cut("vector", 0, 1))
    assert missing.gap() == "vector"


def test_a_rank_that_holds_nothing_keeps_nothing():
    wanted = wanted_of([])
    assert taken(wanted, stored(random.Random(0)), 9) == {}
    assert wanted.gap() is None
    rows, blocks = wanted.rows([])
    assert (len(rows), len(blocks)) == (0, 0)
    assert rows.dtype == blocks.dtype == np.int64
