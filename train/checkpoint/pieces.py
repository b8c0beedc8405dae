"""Which part of a named tensor lies where: the boxes that ranks hold, and who writes which."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]


class Piece(NamedTuple):
    """A box of a tensor.

    Attributes:
        group: of tensors, such as ``model``.
        name: of the tensor in its group.
        dtype: by torch's name, such as ``float32``.
        shape: of the whole tensor.
        offsets: of the box, one per dimension.
        sizes: of the box.
    """

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of the box."""
        return math.prod(self.sizes) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type itself."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def piece_of(group: str, name: str, tensor: torch.Tensor) -> Piece:
    """What this rank holds of a tensor: all of it, or the shard of a DTensor.

    Raises:
        ValueError: a DTensor with pending sums, or one whose shard is no box; a bug of ours.
    """
    shape = tuple(tensor.shape)
    offsets, sizes = (0,) * len(shape), shape
    if hasattr(tensor, "__create_chunk_list__"):  # the protocol of torch.distributed.checkpoint
        chunks = tensor.__create_chunk_list__()
        if len(chunks) != 1:
            raise ValueError(f"{group} {name}: its shard consists of {len(chunks)} boxes")
        offsets, sizes = tuple(chunks[0].offsets), tuple(chunks[0].sizes)
    return Piece(group, name, str(tensor.dtype).removeprefix("torch."), shape, offsets, sizes)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of this rank's piece."""
    shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    assert isinstance(shard, torch.Tensor)
    return shard.detach()


def writers(held: Sequence[Sequence[Piece]]) -> dict[Piece, int]:
    """Which rank writes each piece: once, however many hold it, and about as many bytes as the others.

    Args:
        held: the pieces of each rank.
    """
    holders: dict[Piece, list[int]] = {}
    for rank, pieces in enumerate(held):
        for piece in pieces:
            if piece.bytes:
                holders.setdefault(piece, []).append(rank)
    load = [0] * len(held)
    chosen = {}
    # Those without a choice first, then the large ones: what comes last evens out the rest.
    for piece in sorted(holders, key=lambda piece: (len(holders[piece]) > 1, -piece.bytes, piece)):
        chosen[piece] = min(holders[piece], key=lambda rank: (load[rank], rank))
        load[chosen[piece]] += piece.bytes
    return chosen


def uncovered(pieces: Iterable[Piece], shape: Sequence[int]) -> bool:
    """Whether boxes within a tensor of that shape leave something of it out, or two begin at one place."""
    boxes = {piece.offsets: math.prod(piece.sizes) for piece in pieces}
    return sum(boxes.values()) != math.prod(shape)


class Overlap(NamedTuple):
    """What two boxes of a tensor share, seen from each."""

    of_source: tuple[slice, ...]
    of_target: tuple[slice, ...]


def overlap(source: Piece, target: Piece) -> Overlap | None:
    """Where two pieces of one tensor meet; None where they do not."""
    of_source, of_target = [], []
    for begin_s, size_s, begin_t, size_t in zip(
        source.offsets, source.sizes, target.offsets, target.sizes, strict=True
    ):
        begin, end = max(begin_s, begin_t), min(begin_s + size_s, begin_t + size_t)
        if begin >= end:
            return None
        of_source.append(slice(begin - begin_s, end - begin_s))
        of_target.append(slice(begin - begin_t, end - begin_t))
    return Overlap(tuple(of_source), tuple(of_target))
