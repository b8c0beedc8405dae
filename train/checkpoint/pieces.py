"""Shards of named tensors: the boxes that ranks hold, and the rank that writes each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

Tensors = Mapping[str, torch.Tensor]


class Piece(NamedTuple):
    """A box of a named tensor, as one rank holds it.

    Attributes:
        group: group of tensors, such as ``model``.
        name: name of the tensor in its group.
        dtype: torch's dtype name, such as ``float32``.
        shape: shape of the whole tensor.
        offsets: offset of the box in each dimension.
        sizes: size of the box in each dimension.
    """

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size of the box in bytes."""
        return math.prod(self.sizes) * self.torch_dtype.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a torch object."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def piece_of(group: str, name: str, tensor: torch.Tensor) -> Piece:
    """Return this rank's piece of a tensor: all of it, or the shard of a DTensor.

    Raises:
        ValueError: a DTensor with pending sums, or a shard that is no box; an internal error.
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
    """Return the memory of this rank's piece."""
    shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    assert isinstance(shard, torch.Tensor)
    return shard.detach()


def uncovered(pieces: Iterable[Piece], shape: Sequence[int]) -> bool:
    """Return True if boxes within a tensor of that shape leave a gap, or two start at one place."""
    boxes = {piece.offsets: math.prod(piece.sizes) for piece in pieces}
    return sum(boxes.values()) != math.prod(shape)


class Overlap(NamedTuple):
    """Intersection of two boxes of a tensor, as slices of each."""

    of_source: tuple[slice, ...]
    of_target: tuple[slice, ...]


def overlap(source: Piece, target: Piece) -> Overlap | None:
    """Return the intersection of two pieces of one tensor; None if it is empty."""
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
