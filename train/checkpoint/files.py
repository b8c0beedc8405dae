"""One part of a checkpoint: a safetensors file with the offsets of its shards.

The header's ``DCP_SHARDING_INFO`` holds the offsets in the format of `HuggingFaceStorageReader` of
`torch.distributed.checkpoint`, so that torch's own resharding can read the folder. Format:
https://huggingface.co/docs/safetensors (8 bytes with the length of a JSON header, the header, the data). No
part of the file can run code.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter, ValidationError

from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.checksums import BLOCK, blocks_of, check, covering, crc32
from reelweave.train.checkpoint.damage import damage_error
from reelweave.train.checkpoint.pieces import Piece

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
_TORCH = {short: name for name, short in DTYPES.items()}
_SHARDING, _SHAPES = "DCP_SHARDING_INFO", "reelweave_shapes"
# An entry holds a name, a dtype, two shapes and offsets; module names are far shorter.
HEADER_BYTES_PER_TENSOR = 4096
_FIRST_READ = 1 << 16  # bytes; reads the length and most headers in one request
_CHUNK = 16 << 20


class StoredPiece(NamedTuple):
    """A piece with its location in an object, and the checksums of its blocks if there are any."""

    piece: Piece
    path: str
    start: int
    blocks: Sequence[str] = ()


class _Entry(BaseModel, frozen=True, extra="forbid", strict=True):
    dtype: str
    shape: list[NonNegativeInt] = Field(max_length=64)
    data_offsets: list[NonNegativeInt] = Field(min_length=2, max_length=2)


_ENTRIES = TypeAdapter(dict[str, _Entry])
_OFFSETS = TypeAdapter(dict[str, dict[str, list[NonNegativeInt]]])
_WHOLE = TypeAdapter(dict[str, list[NonNegativeInt]])


def in_order(pieces: Sequence[Piece]) -> list[Piece]:
    """Sort pieces as in a file: widest dtypes first, so that all are aligned."""
    return sorted(pieces, key=lambda piece: (-piece.torch_dtype.itemsize, piece.name))


def header(pieces: Sequence[Piece], metadata: Mapping[str, str]) -> bytes:
    """Return the file's bytes up to its data.

    Args:
        pieces: pieces sorted by `in_order`, with distinct names.
        metadata: metadata of the file.
    """
    entries: dict[str, Any] = {}
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.bytes
        entries[piece.name] = {
            "dtype": DTYPES[piece.dtype],
            "shape": piece.sizes,
            "data_offsets": (begin, end),
        }
    text = json.dumps({"__metadata__": {"format": "pt", **metadata}, **entries}, separators=(",", ":"))
    data = text.encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data


def file_of_tensors(
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    read: Callable[[str], torch.Tensor] | None = None,
) -> tuple[int, Iterator[bytes | memoryview]]:
    """Return size and content of a file of whole tensors, whose bytes follow from them alone.

    safetensors' own writer orders several metadata keys at random.

    Args:
        tensors: contiguous CPU tensors by name; with ``read``, tensors on any device, of which shape and dtype count.
        metadata: metadata of the file, in order.
        read: returns the contiguous CPU tensor of a name, when it is written.
    """
    value_of = read or tensors.__getitem__
    pieces = []
    for name, tensor in tensors.items():
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
        pieces.append(Piece("", name, dtype, shape, (0,) * len(shape), shape))
    pieces = in_order(pieces)
    head = header(pieces, metadata)
    data = (chunk for piece in pieces for chunk in data_of([value_of(piece.name)]))
    content: Iterator[bytes | memoryview] = chain(iter((head,)), data)
    return len(head) + sum(piece.bytes for piece in pieces), content


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write whole tensors to a local file, as `file_of_tensors`."""
    with path.open("wb") as file:
        file.writelines(file_of_tensors(tensors, metadata)[1])


def sharding(pieces: Sequence[Piece]) -> dict[str, str]:
    """Return the metadata with offsets and whole shapes of a file's tensors."""
    return {
        _SHARDING: json.dumps({piece.name: {"saved_offsets": piece.offsets} for piece in pieces}),
        _SHAPES: json.dumps({piece.name: piece.shape for piece in pieces}),
    }


def data_of(tensors: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    """Iterate over the bytes of contiguous CPU tensors, without a copy."""
    for tensor in tensors:
        content = tensor.reshape(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(content), _CHUNK):
            yield content[begin : begin + _CHUNK]


class Header(NamedTuple):
    """JSON header of a file of tensors.

    Attributes:
        size: bytes of the whole file.
        content: bytes of the header.
    """

    size: int
    content: bytes


def read_header(
    storage: Storage, path: str, size: int, most_tensors: int, header_crc32: str | None
) -> Header:
    """Read the header of a file.

    Args:
        storage: storage of the file.
        path: path of the file.
        size: size of the file in bytes.
        most_tensors: maximum number of tensors; bounds the header.
        header_crc32: checksum of the header in the checkpoint's state; None for formats without.

    Raises:
        RunError: the file is damaged or its header too large.
    """
    most_header_bytes = HEADER_BYTES_PER_TENSOR * (1 + most_tensors) + size // BLOCK * 16
    try:
        head = storage.read(path, 0, min(size, _FIRST_READ))
        length = int.from_bytes(head[:8], "little")
        if len(head) < 8 or 8 + length > min(size, most_header_bytes):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        if len(head) < 8 + length:
            head += storage.read(path, len(head), 8 + length - len(head))
        if header_crc32 is not None and crc32(head[: 8 + length]) != header_crc32:
            raise ValueError("the checksum of its header is not the one in the checkpoint's state")
    except (OSError, ValueError) as error:
        raise damage_error(storage, path, error) from error
    return Header(size, head[8 : 8 + length])


def pieces_in(storage: Storage, path: str, group: str, header: Header, checked: bool) -> list[StoredPiece]:
    """Return the pieces that a file's header describes.

    Args:
        storage: storage of the file.
        path: path of the file.
        group: group of its tensors.
        header: header of the file.
        checked: True if the format has checksums.

    Raises:
        RunError: the file is damaged.
    """
    size, data = header.size, 8 + len(header.content)
    try:
        # A header is input that others wrote: every value is checked before it is used.
        content = json.loads(header.content)
        metadata = {str(name): str(value) for name, value in content.pop("__metadata__", {}).items()}
        entries = _ENTRIES.validate_python(content)
        offsets = _OFFSETS.validate_json(metadata.get(_SHARDING, "{}"))
        shapes = _WHOLE.validate_json(metadata.get(_SHAPES, "{}"))
        pieces = []
        # Where each tensor lies in the file, and where it belongs in the whole one.
        for name, entry in entries.items():
            begin, end = entry.data_offsets
            sizes = tuple(entry.shape)
            shape = tuple(shapes.get(name, sizes))
            start = tuple(offsets.get(name, {}).get("saved_offsets", (0,) * len(sizes)))
            piece = Piece(group, name, _TORCH[entry.dtype], shape, start, sizes)
            if end - begin != piece.bytes or data + end > size or not _lies_within(piece):
                raise ValueError(f"{name} does not lie within it")
            pieces.append(StoredPiece(piece, path, data + begin))
        # Tensors fill the file exactly, and each has its checksums.
        sizes_of = {stored_piece.piece.name: stored_piece.piece.bytes for stored_piece in pieces}
        if data + sum(sizes_of.values()) != size:
            raise ValueError(f"its {size} bytes are not those of its tensors")
        blocks = blocks_of(metadata, sizes_of)
        if checked and len(blocks) < len(pieces):
            raise ValueError("it has lost its checksums")
    except (ValidationError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise damage_error(storage, path, error) from error
    return [stored_piece._replace(blocks=blocks.get(stored_piece.piece.name, ())) for stored_piece in pieces]


def read_pieces(
    storage: Storage, path: str, size: int, group: str, most_tensors: int, header_crc32: str | None
) -> list[StoredPiece]:
    """Read the pieces of a file without their data; arguments and errors as in `read_header` and `pieces_in`."""
    header = read_header(storage, path, size, most_tensors, header_crc32)
    return pieces_in(storage, path, group, header, checked=header_crc32 is not None)


def read_rows(storage: Storage, stored: StoredPiece, begin: int, end: int) -> torch.Tensor:
    """Read rows ``begin`` to ``end`` of a piece along its first dimension.

    Raises:
        RunError: the file is truncated, or its bytes differ from what was written.
    """
    piece = stored.piece
    row = math.prod(piece.sizes[1:]) * piece.torch_dtype.itemsize
    begin_byte, end_byte = begin * row, end * row
    first, last = covering(begin_byte, end_byte, piece.bytes) if stored.blocks else (begin_byte, end_byte)
    try:
        data = memoryview(storage.read(stored.path, stored.start + first, last - first))
        if len(data) != last - first:
            raise EOFError("it ended too early")
        if stored.blocks:
            check(data, first, stored.blocks)
    except (FileNotFoundError, EOFError, ValueError) as error:
        raise damage_error(storage, stored.path, error) from error
    flat = torch.frombuffer(bytearray(data[begin_byte - first : end_byte - first]), dtype=piece.torch_dtype)
    return flat.reshape(end - begin, *piece.sizes[1:]) if piece.sizes else flat.reshape(())


def _lies_within(piece: Piece) -> bool:
    if not len(piece.shape) == len(piece.offsets) == len(piece.sizes):
        return False
    boxes = zip(piece.shape, piece.offsets, piece.sizes, strict=True)
    return all(begin + size <= length for length, begin, size in boxes)
