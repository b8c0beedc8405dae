"""Checksums of tensor blocks, so that a reader can verify just the bytes it needs.

A state holds the CRC-32 of each part's header; a header holds one for every block of its tensors. CRC-32 is the
fastest checksum in the standard library (zlib's) and detects errors of disks and networks. It is no signature.
"""

import json
import zlib
from collections.abc import Mapping, Sequence

import torch
from pydantic import TypeAdapter, ValidationError

BLOCK = 4 << 20
"""Bytes of a tensor per checksum; the last block may be shorter."""

_KEY = "reelweave_crc32"
_DIGITS = 8
_CHECKSUMS = TypeAdapter(dict[str, str])


def crc32(data: bytes | memoryview) -> str:
    """Return the CRC-32 as eight hex digits."""
    return f"{zlib.crc32(data):0{_DIGITS}x}"


def metadata_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the metadata of a file that holds the checksums of its tensors.

    Args:
        tensors: contiguous, on a CPU, by name.
    """
    sums = {}
    for name, tensor in tensors.items():
        data = tensor.reshape(-1).view(torch.uint8).numpy().data
        sums[name] = "".join(crc32(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))
    return {_KEY: json.dumps(sums, separators=(",", ":"))}


def blocks_of(metadata: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Sequence[str]]:
    """Return the checksums of each tensor's blocks; empty for a file without checksums.

    Args:
        metadata: metadata of a file.
        sizes: bytes of each of its tensors.

    Raises:
        ValueError: the checksums do not match the tensors.
    """
    if _KEY not in metadata:
        return {}
    try:
        sums = _CHECKSUMS.validate_json(metadata[_KEY])
    except ValidationError as error:
        raise ValueError("checksums that are none") from error
    counts = {name: _DIGITS * -(-size // BLOCK) for name, size in sizes.items()}
    if {name: len(text) for name, text in sums.items()} != counts:
        raise ValueError("checksums of other tensors than it holds")
    return {
        name: [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)] for name, text in sums.items()
    }


def covering(begin: int, end: int, size: int) -> tuple[int, int]:
    """Return the range of whole blocks that contains bytes ``begin`` to ``end`` of a tensor."""
    return begin // BLOCK * BLOCK, min(size, -(-end // BLOCK) * BLOCK)


def check(data: memoryview, begin: int, blocks: Sequence[str]) -> None:
    """Check whole blocks against their checksums.

    Args:
        data: bytes of the tensor, from ``begin`` on.
        begin: offset in the tensor, a multiple of `BLOCK`.
        blocks: checksums of all the tensor's blocks.

    Raises:
        ValueError: a checksum differs.
    """
    for at in range(0, len(data), BLOCK):
        if crc32(data[at : at + BLOCK]) != blocks[(begin + at) // BLOCK]:
            raise ValueError("the checksum of its bytes is not the one that was written with them")
