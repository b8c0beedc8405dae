"""Export of a checkpoint's tensors to one safetensors file."""

import json
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.files import StoredPiece, data_of, header, in_order, read_rows
from reelweave.train.checkpoint.pieces import Piece, overlap
from reelweave.train.checkpoint.reading import find
from reelweave.train.checkpoint.state import CheckpointState

_MOST_TENSORS = 1 << 16


class Exported(NamedTuple):
    """Contents of an exported file.

    Attributes:
        tensors: number of tensors.
        parameters: number of elements in all tensors.
        bytes: size of the file.
    """

    tensors: int
    parameters: int
    bytes: int


def round_tensor(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype.

    Args:
        name: name of the tensor, for errors.
        tensor: values.
        dtype: floating-point dtype.

    Raises:
        UsageError: finite values would become infinite, as those above 65,504 do in float16.
    """
    rounded = tensor.to(dtype)
    largest = torch.finfo(dtype).max
    is_narrower = largest < torch.finfo(tensor.dtype).max
    if is_narrower and not tensor.is_meta and bool(rounded.isinf().any()) and not tensor.isinf().any():
        raise UsageError(
            f"{name} has values up to {tensor.abs().max().item():.3g}, and {str(dtype).removeprefix('torch.')} ends at"
            f" {largest:,.0f}: take --dtype bfloat16 or float32"
        )
    return rounded


def export(
    storage: Storage,
    folder: str,
    state: CheckpointState,
    group: str,
    dtype: str | None,
    target: Storage,
    path: str,
) -> Exported:
    """Write a group's whole tensors one after the other, with only one of them in memory.

    Args:
        storage: storage of the checkpoint.
        folder: folder of the checkpoint.
        state: state of the checkpoint.
        group: group of tensors.
        dtype: dtype that floating-point tensors are rounded to, such as ``bfloat16``; None: keep theirs.
        target: storage to write to.
        path: path of the file in ``target``; replaces an existing object.

    Raises:
        RunError: the checkpoint is damaged.
        UsageError: it has no such group, or values that the dtype cannot hold.
    """
    stored_pieces = find(storage, folder, state, group, _MOST_TENSORS)
    # The header first: names, dtypes and places of all tensors.
    wholes = []
    for name, stored in stored_pieces.items():
        first_piece = stored[0].piece
        rounded = dtype if dtype and first_piece.torch_dtype.is_floating_point else first_piece.dtype
        wholes.append(
            Piece(group, name, rounded, first_piece.shape, (0,) * len(first_piece.shape), first_piece.shape)
        )
    wholes = in_order(wholes)
    head = header(
        wholes,
        {"step": str(state.step), "weights": group, "config": json.dumps(state.config, sort_keys=True)},
    )
    size = len(head) + sum(piece.bytes for piece in wholes)

    # Then tensor by tensor, each joined from the pieces of all ranks.
    def content() -> Iterator[bytes | memoryview]:
        yield head
        for piece in wholes:
            yield from data_of([_assemble_tensor(storage, piece, stored_pieces[piece.name])])

    target.write_chunks(path, content(), size)
    return Exported(len(wholes), sum(math.prod(piece.shape) for piece in wholes), size)


def _assemble_tensor(storage: Storage, target: Piece, parts: list[StoredPiece]) -> torch.Tensor:
    tensor = torch.empty(target.shape, dtype=target.torch_dtype)
    for stored in parts:
        shared = overlap(stored.piece, target)
        assert shared is not None  # an empty piece is not stored
        rows = stored.piece.sizes[0] if stored.piece.sizes else 1
        values = read_rows(storage, stored, 0, rows)
        if values.is_floating_point():
            values = round_tensor(target.name, values, tensor.dtype)
        tensor[shared.of_target] = values
    return tensor
