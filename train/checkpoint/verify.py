"""Verification of a checkpoint: every byte of every part against its checksums."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from reelweave.loader.errors import RunError
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.files import StoredPiece, read_pieces, read_rows
from reelweave.train.checkpoint.names import STATE
from reelweave.train.checkpoint.pieces import uncovered
from reelweave.train.checkpoint.state import read_checkpoint_state

_MOST_TENSORS = 1 << 16
_AT_ONCE = 64 << 20  # bytes of one read
_THREADS = 4


class Verified(NamedTuple):
    """Result of verifying one checkpoint.

    Attributes:
        folder: folder of the checkpoint.
        bytes: size of its parts.
        checked: True if it has checksums; otherwise only its structure was verified.
        problems: one sentence per problem, naming the file; empty if there are none.
    """

    folder: str
    bytes: int
    checked: bool
    problems: tuple[str, ...]


def verify(storage: Storage, folder: str, progress: Callable[[str], None] = lambda _: None) -> Verified:
    """Read every byte of a checkpoint.

    Args:
        storage: storage of the checkpoints.
        folder: folder of the checkpoint.
        progress: called with the path of each part before it is read.
    """
    try:
        state = read_checkpoint_state(storage, folder)
    except RunError as error:
        return Verified(folder, 0, True, (str(error),))
    # Files that belong to no part.
    sizes = {file.path: file.size for file in storage.list(f"{folder}/")}
    expected = {f"{folder}/{path}" for path in (STATE, *state.all_parts)}
    problems = [
        f"{storage.uri(path)} belongs to no part of the checkpoint; remove it"
        for path in sizes
        if path not in expected
    ]
    # Each group: its parts, the bytes of their pieces, and whether the pieces cover every weight.
    for group in state.groups:
        stored: list[StoredPiece] = []
        for part in state.parts(group):
            path = f"{folder}/{part}"
            progress(storage.uri(path))
            if path not in sizes:
                problems.append(f"{storage.uri(path)} is missing, or is no file")
                continue
            try:
                crc32 = state.headers[part] if state.checked else None
                stored += read_pieces(storage, path, sizes[path], group, _MOST_TENSORS, crc32)
            except RunError as error:
                problems.append(str(error))
        problems += _data(storage, stored)
        if not problems:
            problems += _gaps(storage, folder, group, stored)
    return Verified(
        folder, sum(sizes[path] for path in sizes if path in expected), state.checked, tuple(problems)
    )


def _data(storage: Storage, stored: list[StoredPiece]) -> list[str]:
    """Check the blocks of all tensors and return the first fault of each file."""

    def read(stored_piece: StoredPiece) -> str | None:
        rows = stored_piece.piece.sizes[0] if stored_piece.piece.sizes else 1
        step = max(1, _AT_ONCE // max(1, stored_piece.piece.bytes // max(1, rows)))
        try:
            for begin in range(0, rows, step):
                read_rows(storage, stored_piece, begin, min(begin + step, rows))
        except RunError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(_THREADS) as pool:
        faults = list(pool.map(read, stored))
    first = {
        stored_piece.path: text
        for stored_piece, text in reversed(list(zip(stored, faults, strict=True)))
        if text
    }
    return [first[path] for path in sorted(first)]


def _gaps(storage: Storage, folder: str, group: str, stored: list[StoredPiece]) -> Iterator[str]:
    """Describe tensors whose pieces leave gaps."""
    by_name: dict[str, list[StoredPiece]] = {}
    for stored_piece in stored:
        by_name.setdefault(stored_piece.piece.name, []).append(stored_piece)
    for name, parts in by_name.items():
        shape = parts[0].piece.shape
        pieces = [stored_piece.piece for stored_piece in parts]
        if any(piece.shape != shape for piece in pieces) or uncovered(pieces, shape):
            yield f"{storage.uri(folder)}: the pieces of {name} in {group} do not make it whole"
