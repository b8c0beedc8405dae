"""Packets of a transport stream (TS) that are sent twice, and those that are lost, by their counters.

A packet may be sent twice with one counter (ISO/IEC 13818-1, 2.4.3.3). FFmpeg takes the second for further bytes of the
picture, mostly without an error, so here it becomes an empty packet. Its decoders also conceal most of what is lost.
"""

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint8]

PACKET, SYNC = 188, 0x47
_SIZES = ((188, 0), (192, 4), (204, 0))
"""Bytes from a packet to the next one, and before each: plain, of Blu-ray and cameras (M2TS), with parity."""
_LOOKED_AT, _IN_TURN = 1 << 10, 5
"""Bytes within which packets begin, and packets in turn that tell it."""

_ERROR, _BEGIN, _PID = 0x80, 0x40, 0x1F
_ADAPTATION, _PAYLOAD = 0x20, 0x10
_DISCONTINUITY, _CLOCK = 0x80, 0x10  # flags of an adaptation field
_CLOCK_BYTES = slice(6, 12)
_OPTIONAL = ((0x10, 6), (0x08, 6), (0x04, 1))
"""Optional parts of an adaptation field, and their bytes: ISO/IEC 13818-1, table 2-6."""
_EMPTY = 0x1FFF
BLOCK_ROWS = 1 << 13


def layout_of(head: bytes) -> tuple[int, int] | None:
    """Return the bytes from a packet to the next one, and the first one's offset; None where it is no TS."""
    for size, lead in _SIZES:
        begin = head.find(SYNC, lead, _LOOKED_AT)
        while begin >= 0:
            marks = head[begin : begin + size * _IN_TURN : size]
            if len(marks) == _IN_TURN and not marks.strip(bytes((SYNC,))):
                return size, begin - lead
            begin = head.find(SYNC, begin + 1, _LOOKED_AT)
    return None


def without_repeats(data: bytes | memoryview) -> bytes | memoryview:
    """Return the bytes of a film, in which packets of TS that come twice are empty; other files as they are."""
    if data[:1] != bytes((SYNC,)) and data[4:5] != bytes((SYNC,)):
        return data
    layout = layout_of(bytes(data[: 2 * _LOOKED_AT]))
    if layout is None or layout[1]:
        return data
    packets, changed = TsPackets(layout[0]), bytearray(data)
    step = layout[0] * BLOCK_ROWS
    for at in range(0, len(data), step):
        packets.take(memoryview(changed)[at : at + step], at)
    return memoryview(changed) if packets.repeats else data


class _Last:
    """Last packet of a stream.

    Attributes:
        row: Its bytes.
        unit: Offset at which its unit (PES) began, -1 where that is not known.
    """

    def __init__(self, row: Rows, unit: int) -> None:
        self.row, self.unit = row, unit


class TsPackets:
    """Packets of one film, block by block in the order of the file.

    Args:
        size: Bytes from a packet to the next one.

    Attributes:
        repeats: Number of packets that came twice.
        damaged: Offsets of packets with which a unit (PES, mostly a picture) begins of which packets are lost.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lead = 4 if size == 192 else 0
        self._last: dict[int, _Last] = {}
        self.repeats = 0
        self.damaged: set[int] = set()

    def take(self, block: memoryview, offset: int) -> int:
        """Look at whole packets, empty those that came before, and return the bytes up to the first wrong mark.

        Args:
            block: Bytes that begin with a packet, changed in place; what follows the last whole packet is left.
            offset: Place of the block in the file.
        """
        count = len(block) // self._size
        rows = np.frombuffer(block[: count * self._size], np.uint8).reshape(count, self._size)
        rows = rows[:, self._lead : self._lead + PACKET]
        wrong = np.flatnonzero(rows[:, 0] != SYNC)
        if len(wrong):
            rows = rows[: int(wrong[0])]
        pids = (rows[:, 1] & _PID).astype(np.int64) << 8 | rows[:, 2]
        for pid in np.unique(pids).tolist():
            if pid != _EMPTY:
                self._take_stream(pid, rows, np.flatnonzero(pids == pid), offset)
        return len(rows) * self._size if len(wrong) else len(block)

    def forget(self) -> None:
        """Forget the last packets, where the file is read from another place on."""
        self._last.clear()

    def _take_stream(self, pid: int, rows: Rows, places: NDArray[np.int64], offset: int) -> None:
        """Look at the packets of one stream, which lie at these rows."""
        last = self._last.get(pid)
        own = rows[places]
        if last is not None:
            own = np.concatenate([last.row[None], own])
            places = np.concatenate([[-1], places])
        # Some writers count packets without a payload, too; others number these as they like.
        steps = np.diff(own[:, 3].astype(np.int64) & 15, prepend=own[:1, 3]) & 15
        counts = (own[:, 3] & _PAYLOAD > 0) | (steps == 1)
        counts[0] = True
        own, places = own[counts], places[counts]
        steps = np.diff(own[:, 3].astype(np.int64) & 15) & 15
        repeated = self._repeated(own, steps)
        for index in (repeated + 1).tolist():
            rows[places[index], 1:3] = _EMPTY >> 8, _EMPTY & 255
        self.repeats += len(repeated)
        kept = np.ones(len(own), bool)
        kept[repeated + 1] = False
        self._note(pid, own[kept], places[kept], offset, -1 if last is None else last.unit)

    @staticmethod
    def _repeated(own: Rows, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which packets come again behind themselves, but for the clock in them."""
        stays = np.flatnonzero((steps == 0) & (own[1:, 3] & _PAYLOAD > 0))
        first, second = own[stays].copy(), own[stays + 1].copy()
        for pair in (first, second):
            has_clock = (pair[:, 3] & _ADAPTATION > 0) & (pair[:, 4] >= 7) & (pair[:, 5] & _CLOCK > 0)
            pair[has_clock, _CLOCK_BYTES] = 0
        is_same: NDArray[np.bool_] = np.all(first == second, axis=1)
        return stays[is_same]

    def _note(self, pid: int, own: Rows, places: NDArray[np.int64], offset: int, unit: int) -> None:
        """Note units of which packets are lost, and the last packet."""
        has_field = (own[:, 3] & _ADAPTATION > 0) & (own[:, 4] > 0)
        is_announced = has_field & (own[:, 5] & _DISCONTINUITY > 0)
        steps = np.diff(own[:, 3].astype(np.int64) & 15) & 15
        # A counter that stays tells a packet of a writer that does not count.
        lost = (steps > 1) & ~is_announced[1:]
        begins = own[:, 1] & _BEGIN > 0
        units = np.where(begins & (places >= 0), offset + places * self._size, -1)
        if places[0] < 0:
            units[0] = unit
        units = _carried(units)
        for index in (np.flatnonzero(lost) + 1).tolist():
            # A unit ends in a packet that is filled up; one that is full goes on in a lost one.
            if not begins[index]:
                self.damaged.add(int(units[index]))
            elif not _is_filled_up(own[index - 1]):
                self.damaged.add(int(units[index - 1]))
        marked = (own[:, 1] & _ERROR > 0) & (places >= 0)
        self.damaged.update(units[marked].tolist())
        self.damaged.discard(-1)
        self._last[pid] = _Last(own[-1].copy(), int(units[-1]))


def _carried(units: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return offsets in which each -1 is the one before."""
    known = np.where(units >= 0, np.arange(len(units)), 0)
    last: NDArray[np.int64] = np.maximum.accumulate(known)
    carried: NDArray[np.int64] = np.take(units, last)
    return carried


def _is_filled_up(row: Rows) -> bool:
    """Return whether the adaptation field of a packet has bytes without a meaning, which fill it up."""
    if not row[3] & _ADAPTATION:
        return False
    length = int(row[4])
    if not length:
        return True
    flags, needed = int(row[5]), 1
    needed += sum(count for flag, count in _OPTIONAL if flags & flag)
    for flag in (0x02, 0x01):  # private data, and an extension, behind their lengths
        if flags & flag and 5 + needed < PACKET:
            needed += 1 + int(row[5 + needed])
    return length > needed
