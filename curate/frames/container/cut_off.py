"""Films of which the last part is missing, by the sizes that their containers state; FFmpeg reads what there is."""

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

EBML, SEGMENT, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1F43B675
_MOST_ID_BYTES = 4
_FRAGMENT_KINDS = (b"moof", b"mdat")
_MOST_BOXES = 100_000  # top-level boxes of fragmented MP4 that are looked at
_MOST_INDEX_BYTES = 1 << 20  # of the index before fragments
_INFO, _TICK_NS, _DURATION = 0x1549A966, 0x2AD7B1, 0x4489
_HEAD_BYTES = 1 << 20
_ASF = bytes.fromhex("3026b2758e66cf11")
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")  # the object on the file's properties
_MOST_LISTS = 1000  # of a gigabyte each
_BROADCAST = 1  # flag: sizes and durations say nothing


@dataclass(frozen=True)
class Promise:
    """Duration that the header of a film states of all its tracks.

    Attributes:
        seconds: Seconds.
        is_cut_off: True where the header states more bytes than there are.
    """

    seconds: float
    is_cut_off: bool


def promise_of(file: BinaryIO) -> Promise | None:
    """Return what the header of a film promises, or None where it states no duration.

    Of Matroska and WebM (RFC 9559), ASF (Advanced Systems Format, 3.2), FLV (metadata by its writers) and AVI.
    """
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    if head.startswith(EBML.to_bytes(4, "big")):
        stated, seconds = _matroska_promise(head)
    elif head.startswith(_ASF):
        stated, seconds = _asf_promise(head)
    elif head.startswith(b"FLV"):
        stated, seconds = _flv_number(head, b"filesize"), _flv_number(head, b"duration")
    elif head.startswith(b"RIFF"):
        stated, seconds = _avi_promise(file, head)
    else:
        return None
    return Promise(seconds, stated > file.seek(0, 2)) if seconds > 0 else None


def _matroska_promise(head: bytes) -> tuple[float, float]:
    """Return the place where the segment ends, and its duration in seconds; 0 for what is not stated."""
    at, ends, tick_ns, ticks = 0, 0, 1_000_000, 0.0
    while (found := read_head(head, at)) is not None:
        element, size, content = found
        at = content
        if element == CLUSTER:
            break
        if element == SEGMENT:
            ends = 0 if size is None else content + size
        elif element == _TICK_NS and size is not None:
            tick_ns = int.from_bytes(head[content : content + size], "big")
            at += size
        elif element == _DURATION and size in (4, 8) and content + size <= len(head):
            (ticks,) = struct.unpack_from(">f" if size == 4 else ">d", head, content)
            at += size
        elif element != _INFO:
            at += size or 0
    return ends, ticks * tick_ns * 1e-9


def _asf_promise(head: bytes) -> tuple[float, float]:
    """Return the size of the file in bytes and its duration in seconds."""
    at = head.find(_ASF_FILE)
    if at < 0 or at + 92 > len(head):
        return 0, 0
    size, _, _, played, _, before_ms, flags = struct.unpack_from("<QQQQQQI", head, at + 40)
    return 0 if flags & _BROADCAST else size, played * 1e-7 - before_ms * 1e-3


def _avi_promise(file: BinaryIO, head: bytes) -> tuple[float, float]:
    """Return the place where the last of its lists ends, some bytes too early, and the duration in seconds."""
    ends = 0
    for _ in range(_MOST_LISTS):
        file.seek(ends)
        kind, size = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
        if kind != b"RIFF":
            break
        ends += 8 + size + size % 2
    at = head.find(b"strh") + 8
    while at >= 8 and head[at : at + 4] != b"vids":
        at = head.find(b"strh", at) + 8
    if at < 8 or at + 36 > len(head):
        return 0, 0
    scale, rate, _, frames = struct.unpack_from("<4I", head, at + 20)
    return ends - 8, frames * scale / rate if rate else 0.0  # writers differ by the head of the list


def _flv_number(head: bytes, name: bytes) -> float:
    """Return a number of the metadata (AMF 0: a name behind its length, and type 0), or 0."""
    at = head.find(struct.pack(">H", len(name)) + name + b"\0")
    begin = at + 3 + len(name)
    return float(struct.unpack_from(">d", head, begin)[0]) if at >= 0 and begin + 8 <= len(head) else 0.0


def cut_off(media: bytes | memoryview) -> str | None:
    """Return words for what is missing at the end of Matroska, WebM or fragmented MP4; None where nothing is known.

    Elements of live recorders that state no size promise nothing. Where the file ends behind its pictures, as within
    an index of them, no picture is missing.
    """
    if bytes(media[:4]) == EBML.to_bytes(4, "big"):
        return "its Matroska promises more than is there" if _ends_within_cluster(media) else None
    end = fragments_end(media)
    if end is None:
        return None
    if end.kind:
        return "its last fragment is not whole" if end.kind in _FRAGMENT_KINDS else None
    is_padded = not bytes(media[end.offset :]).strip(b"\0")  # the film may be whole
    return None if is_padded else end.words


def _ends_within_cluster(media: bytes | memoryview) -> bool:
    """Return whether a cluster, or the segment behind the last one, is not whole: RFC 9559."""
    at, segment_end, last = 0, 0, 0
    while at < len(media) and (head := read_head(media, at)) is not None:
        element, size, content = head
        if element == SEGMENT:
            segment_end = 0 if size is None else content + size
            at = content
            continue
        if size is None:
            return False
        last, at = element, content + size
    return last == CLUSTER and max(at, segment_end) > len(media)


def read_head(media: bytes | memoryview, at: int) -> tuple[int, int | None, int] | None:
    """Return ID and size of an element of Matroska, and where its content begins; None for no element.

    The size is None where the element states none.
    """
    if at >= len(media):
        return None
    id_bytes = 9 - media[at].bit_length()
    size_at = at + id_bytes
    if id_bytes > _MOST_ID_BYTES or size_at >= len(media) or not media[size_at]:
        return None
    size_bytes = 9 - media[size_at].bit_length()
    mask = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(media[size_at : size_at + size_bytes], "big") & mask
    return int.from_bytes(media[at:size_at], "big"), None if size == mask else size, size_at + size_bytes


class FragmentsEnd(NamedTuple):
    """Place at which reading of fragmented MP4 ends before the file does.

    Attributes:
        offset: Byte at which the box begins that is not whole, or at which there is none.
        kind: Kind of the box that is not whole, or b"" for no box.
    """

    offset: int
    kind: bytes

    @property
    def words(self) -> str:
        """Words for the place, but for pictures that are cut off, which the decoder finds; "" for these."""
        if self.kind == b"moof":
            return f"a fragment is cut off within its header (moof, from byte {self.offset} on)"
        if self.kind:
            return ""
        return f"no box of MP4 begins at byte {self.offset}, and what lies behind it is not read"


def fragments_end(media: bytes | memoryview | BinaryIO) -> FragmentsEnd | None:
    """Return where fragmented MP4 ends before its file does (ISO/IEC 14496-12, 8.8); None for other files.

    Where it is not fragmented its index counts the frames.
    """
    read: Callable[[int, int], bytes]
    if isinstance(media, (bytes, memoryview)):
        view, size = memoryview(media), len(media)

        def read(at: int, count: int) -> bytes:
            return bytes(view[at : at + count])
    else:
        file, size = media, media.seek(0, io.SEEK_END)

        def read(at: int, count: int) -> bytes:
            file.seek(at)
            return file.read(count)

    at, is_fragmented = 0, False
    for _ in range(_MOST_BOXES):
        if at >= size:
            return None
        header = read(at, 16)
        length, kind = int.from_bytes(header[:4], "big"), header[4:8]
        if length == 1:
            length = int.from_bytes(header[8:16], "big")
        if length == 0 and kind == b"mdat":  # up to the end of the file
            return None
        if length < 8 or len(kind) < 4:
            return FragmentsEnd(at, b"") if is_fragmented else None
        is_fragmented |= kind == b"moof" or (
            kind == b"moov" and b"mvex" in read(at, min(length, _MOST_INDEX_BYTES))
        )
        if at + length > size:
            return FragmentsEnd(at, kind if kind.isalnum() else b"") if is_fragmented else None
        at += length
    return None


class FileBegin(io.RawIOBase):
    """View of the begin of a file, which ends at a byte of it.

    Args:
        file: The whole file.
        size: Number of its first bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__()
        self._file, self._size = file, size
        file.seek(0)

    def read(self, size: int = -1) -> bytes:
        """Read up to so many bytes, or all that are left."""
        left = max(0, self._size - self._file.tell())
        return self._file.read(left if size < 0 else min(size, left))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place, which may be counted from the end of the view."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._size}[whence]
        return self._file.seek(base + offset)

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._file.tell()

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True
