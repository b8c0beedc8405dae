"""JSON values of all ranks of a process group, exchanged between their CPUs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from reelweave.loader.errors import RunError, first_line

# Bytes of a rank in the first collective; a longer value takes a second one. A sample takes some hundred bytes.
_ROW = 1 << 14
_HEAD = 8


class HostGroup:
    """Ranks of a process group, connected by their CPUs; creating it is a collective of the group.

    Args:
        group: process group; None is all ranks.
        device: type of device that the group's own collectives run on.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        base: Any = group or dist.group.WORLD
        ranks = dist.get_process_group_ranks(group)
        host: Any = dist.new_group(
            ranks,
            timeout=base._get_backend(device).options._timeout,
            backend="gloo",
            use_local_synchronization=True,
        )
        self._group: dist.ProcessGroup = host
        self._places = [dist.get_group_rank(host, rank) for rank in ranks]

    def gather(self, value: object) -> list[Any]:
        """Return the JSON value of each rank, by its rank in the given group.

        Raises:
            RunError: another rank has ended.
        """
        text = json.dumps(value).encode()
        message = len(text).to_bytes(_HEAD, "little") + text
        with broken_exchange_in_words():
            rows = self._rows(message[:_ROW], _ROW)
            sizes = [int.from_bytes(row[:_HEAD], "little") for row in rows]
            if (rest := _HEAD + max(sizes) - _ROW) > 0:
                rows = [row + more for row, more in zip(rows, self._rows(message[_ROW:], rest), strict=True)]
        return [json.loads(row[_HEAD : _HEAD + size]) for row, size in zip(rows, sizes, strict=True)]

    def _rows(self, message: bytes, width: int) -> list[bytes]:
        """Return the bytes of all ranks, zero-padded to a width."""
        row = torch.frombuffer(bytearray(message.ljust(width, b"\0")), dtype=torch.uint8)
        rows = [torch.empty_like(row) for _ in self._places]
        dist.all_gather(rows, row, self._group)
        return [rows[index].numpy().tobytes() for index in self._places]


@contextmanager
def broken_exchange_in_words() -> Iterator[None]:
    """Raise `RunError` in place of the error of a collective."""
    try:
        yield
    except RuntimeError as error:
        raise RunError(
            "the exchange within the model-parallel group broke off: another rank has ended, failed or stopped"
            f" answering, see its messages ({first_line(error)})"
        ) from error
