"""Reading of tensors from a checkpoint, at any number of writing and reading ranks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.damage import damage_error
from reelweave.train.checkpoint.files import Header, StoredPiece, pieces_in, read_header, read_rows
from reelweave.train.checkpoint.pieces import Overlap, Tensors, local, overlap, piece_of, uncovered
from reelweave.train.checkpoint.state import CheckpointState

_AT_ONCE = 64 << 20  # bytes per read
_THREADS = 8

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype and shape of each tensor of a group."""


def shapes_of(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtypes and shapes of whole tensors, given with their names; empty tensors are not stored."""
    return {name: (dtype, shape) for name, dtype, shape in tensors if 0 not in shape}


def read_headers(
    storage: Storage,
    folder: str,
    state: CheckpointState,
    group: str,
    most_tensors: int,
    share: slice = slice(None),
) -> dict[str, Header]:
    """Read the headers of a group's parts, by path.

    Args:
        storage: storage of the checkpoints.
        folder: folder of the checkpoint.
        state: state of the checkpoint.
        group: group of tensors.
        most_tensors: maximum number of tensors; bounds the headers.
        share: the parts to read; all by default.

    Raises:
        RunError: a part is missing or damaged.
        UsageError: the checkpoint has no such group.
    """
    if group not in state.groups:
        raise UsageError(
            f"{storage.uri(folder)} holds no {group}, only {', '.join(state.groups)};"
            " resume with the configuration that wrote it"
        )
    sizes = {file.path: file.size for file in storage.list(f"{folder}/{group}")}
    paths = [f"{folder}/{part}" for part in state.parts(group)]
    if missing := [path for path in paths if path not in sizes]:
        raise damage_error(storage, missing[0], FileNotFoundError("it is missing"))

    def read(path: str) -> Header:
        crc32 = state.headers[path.removeprefix(f"{folder}/")] if state.checked else None
        return read_header(storage, path, sizes[path], most_tensors, crc32)

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(paths[share], pool.map(read, paths[share]), strict=True))


def find(
    storage: Storage,
    folder: str,
    state: CheckpointState,
    group: str,
    most_tensors: int,
) -> dict[str, list[StoredPiece]]:
    """Locate the pieces of a group, by tensor.

    Args:
        storage: storage of the checkpoints.
        folder: folder of the checkpoint.
        state: state of the checkpoint.
        group: group of tensors.
        most_tensors: maximum number of tensors; bounds the headers.

    Raises:
        RunError: a part is missing or damaged.
        UsageError: the checkpoint has no such group.
    """
    headers = read_headers(storage, folder, state, group, most_tensors)
    by_name: dict[str, list[StoredPiece]] = {}
    for path, header in headers.items():
        for stored_piece in pieces_in(storage, path, group, header, state.checked):
            by_name.setdefault(stored_piece.piece.name, []).append(stored_piece)
    for name, parts in by_name.items():
        pieces, shape = [stored.piece for stored in parts], parts[0].piece.shape
        if any(piece.shape != shape for piece in pieces) or uncovered(pieces, shape):
            raise damage_error(
                storage, parts[0].path, ValueError(f"the pieces of {name} do not make it whole")
            )
    return by_name


def load_(
    storage: Storage,
    folder: str,
    state: CheckpointState,
    group: str,
    targets: Tensors,
    shapes: Shapes,
) -> None:
    """Copy a group's tensors into ``targets``, after names, dtypes and shapes have been checked.

    Args:
        storage: storage of the checkpoints.
        folder: folder of the checkpoint.
        state: state of the checkpoint.
        group: group of tensors.
        targets: plain tensors or DTensors of any layout; fills this rank's part.
        shapes: shapes of the tensors of all ranks.

    Raises:
        RunError: the checkpoint is damaged.
        UsageError: its tensors do not match ``shapes``.
    """
    pieces = find(storage, folder, state, group, len(shapes))
    stored_shapes = {name: (s[0].piece.dtype, s[0].piece.shape) for name, s in pieces.items()}
    if difference := _difference(stored_shapes, shapes):
        raise UsageError(f"{group} in {storage.uri(folder)} does not fit this configuration: {difference}")
    copy_(storage, group, targets, pieces)


def copy_(
    storage: Storage, group: str, targets: Tensors, pieces: Mapping[str, Sequence[StoredPiece]]
) -> None:
    """Copy a group's tensors into ``targets`` from pieces that make them whole.

    Raises:
        RunError: the checkpoint is damaged.
    """

    def copy(work: tuple[torch.Tensor, StoredPiece, Overlap, int, int]) -> None:
        target, stored, (of_source, of_target), begin, end = work
        rows = read_rows(storage, stored, begin, end)
        if of_source:  # not a scalar
            first = begin - of_source[0].start + of_target[0].start
            rows, target = rows[:, *of_source[1:]], target[first : first + end - begin, *of_target[1:]]
        target.copy_(rows)

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(copy, _reads(group, targets, pieces)))


def _reads(
    group: str, targets: Tensors, pieces: Mapping[str, Sequence[StoredPiece]]
) -> Iterator[tuple[torch.Tensor, StoredPiece, Overlap, int, int]]:
    """Yield target, piece, intersection and the range of rows per read."""
    for name, target in targets.items():
        box = piece_of(group, name, target)
        for stored in pieces.get(name, ()):
            if (shared := overlap(stored.piece, box)) is None:
                continue
            rows = shared.of_source[0] if shared.of_source else slice(0, 1)
            row_bytes = stored.piece.bytes // (stored.piece.sizes[0] if stored.piece.sizes else 1)
            step = max(1, _AT_ONCE // row_bytes)
            for begin in range(rows.start, rows.stop, step):
                yield local(target), stored, shared, begin, min(begin + step, rows.stop)


def difference_of(
    name: str, stored: tuple[str, tuple[int, ...]] | None, expected: tuple[str, tuple[int, ...]] | None
) -> str | None:
    """Describe the difference between a stored and an expected tensor, each its dtype and shape; None without one."""
    if stored is None:
        return f"{name} is missing"
    if expected is None:
        return f"{name} is not part of it"
    if stored[1] != expected[1]:
        return f"{name} has shape {list(stored[1])} instead of {list(expected[1])}"
    if stored[0] != expected[0]:
        return f"{name} is {stored[0]} instead of {expected[0]}"
    return None


def describe_differences(differences: Mapping[str, str]) -> str | None:
    """Describe differences by tensor, the first three in words; None without any."""
    messages = [differences[name] for name in sorted(differences)]
    more = f", and {len(messages) - 3} more" if len(messages) > 3 else ""
    return ", ".join(messages[:3]) + more or None


def _difference(stored: Shapes, expected: Shapes) -> str | None:
    """Describe the difference between stored and expected tensors."""
    names = stored.keys() | expected.keys()
    texts = ((name, difference_of(name, stored.get(name), expected.get(name))) for name in names)
    return describe_differences({name: text for name, text in texts if text})
