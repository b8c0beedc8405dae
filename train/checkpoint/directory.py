"""Directory of a checkpoint's tensors, built by all ranks: each parses the headers of its share of the parts.

With 1,024 ranks that hold a shard of every tensor, the headers list millions of pieces. Ranks exchange them as rows of
numbers, some at a time, and each one keeps the few that overlap with its own tensors.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.damage import damage_error
from reelweave.train.checkpoint.files import StoredPiece, pieces_in
from reelweave.train.checkpoint.pieces import Piece, Tensors, overlap, piece_of
from reelweave.train.checkpoint.reading import Shapes, describe_differences, difference_of, read_headers
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.distributed.world import World

ROWS = 1 << 18
"""Rows that a rank holds of all ranks at a time."""
_HEAD = 4  # columns before the box: tensor, part, first byte, number of checksums

Rows = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")


class Together(Protocol):
    """Action that may fail on a single rank, and then fails on all; a collective."""

    def __call__(self, act: Callable[[], T]) -> T: ...


class Wanted:
    """Boxes that one rank reads of a group's tensors, and the pieces that overlap with them.

    Args:
        group: group of the tensors.
        targets: tensors of this rank.
        shapes: dtypes and shapes of all ranks' tensors, by name.
        paths: paths of the group's parts.
    """

    def __init__(self, group: str, targets: Tensors, shapes: Shapes, paths: Sequence[str]) -> None:
        self._group, self._shapes, self._paths = group, shapes, paths
        self.names = sorted(shapes)
        self._number = {name: index for index, name in enumerate(self.names)}
        self._part = {path: index for index, path in enumerate(paths)}
        self._dims = max((len(shape) for _, shape in shapes.values()), default=0)
        self._boxes = {
            name: box for name, target in targets.items() if (box := piece_of(group, name, target)).bytes
        }
        self._low_ND = np.zeros((len(self.names), self._dims), np.int64)
        self._high_ND = np.zeros_like(self._low_ND)
        self._is_wanted_N = np.zeros(len(self.names), np.bool_)
        for name, box in self._boxes.items():
            index = self._number[name]
            self._is_wanted_N[index] = True
            self._low_ND[index], sizes_D = self._pad(box)
            self._high_ND[index] = self._low_ND[index] + sizes_D
        self.found: dict[str, list[StoredPiece]] = {}

    def rows(self, stored: Sequence[StoredPiece]) -> tuple[Rows, Rows]:
        """Return pieces as rows of numbers, and the checksums of all their blocks, one after the other."""
        rows = np.zeros((len(stored), _HEAD + 2 * self._dims), np.int64)
        for row, stored_piece in zip(rows, stored, strict=True):
            tensor_index, part = self._number[stored_piece.piece.name], self._part[stored_piece.path]
            row[:_HEAD] = tensor_index, part, stored_piece.start, len(stored_piece.blocks)
            offsets_D, sizes_D = self._pad(stored_piece.piece)
            row[_HEAD:] = [*offsets_D, *sizes_D]
        return rows, np.array(
            [int(block, 16) for stored_piece in stored for block in stored_piece.blocks], np.int64
        )

    def take(self, rows: Rows, blocks: Rows) -> None:
        """Keep the pieces that overlap with a box of this rank.

        Args:
            rows: pieces of any parts, as from `rows`.
            blocks: their checksums, in the same order.
        """
        begins = np.concatenate([[0], np.cumsum(rows[:, 3])])
        near = np.flatnonzero(self._is_wanted_N[rows[:, 0]])
        tensor_indices, low = rows[near, 0], rows[near, _HEAD : _HEAD + self._dims]
        high = low + rows[near, _HEAD + self._dims :]
        shared = np.maximum(low, self._low_ND[tensor_indices]) < np.minimum(
            high, self._high_ND[tensor_indices]
        )
        for row_index in near[shared.all(axis=1)].tolist():
            tensor_index, part, start, count = rows[row_index, :_HEAD].tolist()
            name = self.names[tensor_index]
            dtype, shape = self._shapes[name]
            box = rows[row_index, _HEAD:].reshape(2, self._dims)[:, : len(shape)].tolist()
            piece_blocks = blocks[begins[row_index] : begins[row_index] + count].tolist()
            piece = Piece(self._group, name, dtype, shape, tuple(box[0]), tuple(box[1]))
            stored_piece = StoredPiece(
                piece, self._paths[part], start, [f"{block:08x}" for block in piece_blocks]
            )
            self.found.setdefault(name, []).append(stored_piece)

    def gap(self) -> str | None:
        """Return the name of a tensor whose pieces do not make this rank's box whole; None if all do."""
        for name, box in self._boxes.items():
            pieces = {
                stored_piece.piece.offsets: stored_piece.piece for stored_piece in self.found.get(name, ())
            }
            if len(pieces) != len(self.found.get(name, ())):
                return name
            volume = 0
            for piece in pieces.values():
                shared = overlap(piece, box)
                assert shared is not None
                volume += math.prod(extent.stop - extent.start for extent in shared.of_target)
            if volume != math.prod(box.sizes):
                return name
        return None

    def _pad(self, box: Piece) -> tuple[list[int], list[int]]:
        missing = self._dims - len(box.shape)
        return [*box.offsets, *([0] * missing)], [*box.sizes, *([1] * missing)]


def locate(
    storage: Storage,
    folder: str,
    state: CheckpointState,
    group: str,
    targets: Tensors,
    shapes: Shapes,
    world: World,
    together: Together,
) -> dict[str, list[StoredPiece]]:
    """Locate the pieces that a rank reads of a group, by tensor; a collective.

    Args:
        storage: storage of the checkpoints.
        folder: folder of the checkpoint.
        state: state of the checkpoint.
        group: group of tensors.
        targets: tensors of this rank.
        shapes: dtypes and shapes of all ranks' tensors, by name.
        world: all ranks.
        together: runs what may fail on a single rank.

    Raises:
        RunError: a part is missing or damaged, or pieces leave a gap.
        UsageError: the checkpoint has no such group, or its tensors do not match ``shapes``.
    """
    rank_boxes = Wanted(group, targets, shapes, [f"{folder}/{part}" for part in state.parts(group)])
    share = slice(world.rank, None, world.size)

    def parse_pieces() -> list[StoredPiece]:
        headers = read_headers(storage, folder, state, group, len(shapes), share)
        return [
            stored_piece
            for path, header in headers.items()
            for stored_piece in pieces_in(storage, path, group, header, state.checked)
        ]

    # Each rank parses a share of the headers, so that none reads all.
    local_pieces = together(parse_pieces)
    if difference := _difference(local_pieces, rank_boxes.names, shapes, world):
        raise UsageError(f"{group} in {storage.uri(folder)} does not fit this configuration: {difference}")
    # Ranks exchange what they parsed in bounded rounds, and keep what overlaps their tensors.
    at_once = max(1, ROWS // world.size)
    for begin in range(0, world.largest(len(local_pieces)), at_once):
        rows, blocks = (
            torch.from_numpy(array).to(world.device)
            for array in rank_boxes.rows(local_pieces[begin : begin + at_once])
        )
        rank_boxes.take(
            world.gather(rows).cpu().numpy(), world.gather(blocks[:, None]).flatten().cpu().numpy()
        )

    # A tensor that pieces do not cover is a damaged checkpoint, never zeros.
    def whole() -> None:
        if (name := rank_boxes.gap()) is not None:
            path = next(
                (stored_piece.path for stored_piece in rank_boxes.found.get(name, ())),
                f"{folder}/{state.parts(group)[0]}",
            )
            raise damage_error(storage, path, ValueError(f"the pieces of {name} do not make it whole"))

    together(whole)
    return rank_boxes.found


def _difference(
    local_pieces: Sequence[StoredPiece], names: Sequence[str], shapes: Shapes, world: World
) -> str | None:
    """Describe the difference between stored and expected tensors; a collective, the same on all ranks."""
    summary = {
        name: text
        for name, dtype, shape in {
            (stored_piece.piece.name, stored_piece.piece.dtype, stored_piece.piece.shape)
            for stored_piece in local_pieces
        }
        if (text := difference_of(name, (dtype, shape), shapes.get(name)))
    }
    stored = {stored_piece.piece.name for stored_piece in local_pieces}
    counts_N = torch.tensor([name in stored for name in names], dtype=torch.int64, device=world.device)
    world.sum_([counts_N])
    all_told: dict[str, str] = {}
    for text in world.gather_text(json.dumps(summary)):
        all_told = json.loads(text) | all_told
    missing = {name for name, count in zip(names, counts_N.tolist(), strict=True) if not count}
    all_told |= {name: text for name in missing if (text := difference_of(name, None, shapes[name]))}
    return describe_differences(all_told)
