"""Scan of all samples of a WebDataset tar in one pass and bounded memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from reelweave.loader.dataset.tars.tar_format import (
    MAX_EXTENSION_BYTES,
    TAR_BLOCK,
    Extension,
    TarError,
    check_sum,
    fields,
    is_extension,
    key_and_suffix,
    padded_size,
)

MAX_SAMPLE_BYTES = 2 * 2**30

_READ_BYTES = 4 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class Member:
    """Member of a sample: suffix behind the key, offset of its content in the tar, and size in bytes."""

    suffix: str
    offset: int
    size: int


@dataclass(frozen=True)
class TarSample:
    """Sample in a tar, with its bytes or its problem.

    Attributes:
        key: key by the rule of webdataset.
        offset: offset of the first member's first header in the tar.
        size: bytes up to the end of the last member; 0 if the end is missing.
        members: members in tar order.
        region: bytes of the sample; None if it has a problem.
        problem: reason why it is unusable, or "".
    """

    key: str
    offset: int
    size: int
    members: tuple[Member, ...]
    region: bytes | None
    problem: str = ""


@dataclass
class TarScan:
    """One pass over a tar in bounded memory; iterate once, then read the attributes.

    Attributes:
        file: open file at the start of the tar.
        max_sample_bytes: size above which samples have a problem and are not held in memory.
        sha256: checksum of the whole tar.
        size: size of the tar in bytes.
        damage: damages of the tar itself, one sentence each.
    """

    file: BinaryIO
    max_sample_bytes: int = MAX_SAMPLE_BYTES
    sha256: str = ""
    size: int = 0
    damage: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[TarSample]:
        """Yield the samples in tar order, unusable ones with their problem."""
        tape = _Tape(self.file, self.max_sample_bytes)
        current: _Current | None = None
        try:
            while (entry := _entry(tape)) is not None:
                if entry.found is None:
                    tape.skip(padded_size(entry.size))
                    continue
                key, suffix = entry.found
                # Members of a sample follow each other; another key begins the next sample.
                if current is None or current.key != key:
                    if current is not None:
                        yield current.close(tape)
                    tape.sample_begins()
                    current = _Current(key, entry.start)
                current.begin(Member(suffix, tape.position, entry.size))
                tape.skip(padded_size(entry.size))
                current.end = tape.position
            if remaining := tape.drain():
                self.damage.append(
                    f"holds {remaining} bytes behind its end-of-archive mark, where readers stop: joined tars, perhaps"
                )
        except EOFError:
            self.damage.append(
                "is empty: it has 0 bytes"
                if not tape.position
                else f"ends at byte {tape.position} without an end-of-archive mark: what was written behind its last"
                " sample, or the last members of it, may be missing"
            )
        except TarError as error:
            # All of the file is read all the same, so that its checksum is of the whole.
            at = tape.position
            tape.drain()
            lost = f"; {tape.position - at} bytes behind it were not looked at" if tape.position > at else ""
            self.damage.append(f"is damaged or cut off before byte {at}: {error}{lost}")
        if current is not None:
            yield current.close(tape)
        self.sha256, self.size = tape.sha256.hexdigest(), tape.position


@dataclass(frozen=True)
class _MemberHeader:
    """Parsed headers of a member: start, key and suffix, and size of the content that follows."""

    start: int
    found: tuple[str, str] | None
    size: int


@dataclass
class _Current:
    key: str
    start: int
    end: int = 0  # 0 until a member is read to its end
    members: list[Member] = field(default_factory=list)
    problem: str = ""

    def begin(self, member: Member) -> None:
        if any(member.suffix == other.suffix for other in self.members):
            self.problem = f"has two members .{member.suffix}"
        self.members.append(member)
        self.end = 0

    def close(self, tape: "_Tape") -> TarSample:
        problem, size = self.problem, max(0, self.end - self.start)
        names = "".join([self.key, *(member.suffix for member in self.members)])
        if not size:
            problem = f"the tar ends inside its member .{self.members[-1].suffix}"
        elif tape.lost:
            problem = f"has more than {tape.limit} bytes, too many to look at"
        elif _printable(names) != names:
            problem = "has a name that is not UTF-8"
        region = None if problem else bytes(memoryview(tape.held)[:size])
        return TarSample(_printable(self.key), self.start, size, tuple(self.members), region, problem)


def _printable(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


class _Tape:
    """Forward-only reader that hashes all bytes and holds those of the current sample."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.limit = limit
        self.position = 0
        self.sha256 = hashlib.sha256()
        self.held = bytearray()
        self.lost = False  # True once the sample exceeds the limit
        self._headers = bytearray()  # headers of the last member, which may begin the next sample
        self._file = file

    def headers_begin(self) -> int:
        """Return the position of the next headers; earlier bytes stay with the current sample."""
        self._hold(self._headers)
        self._headers = bytearray()
        return self.position

    def sample_begins(self) -> None:
        """Begin a new sample with the last headers."""
        self.held, self.lost = bytearray(), False

    def header(self, size: int) -> bytes:
        """Read the next bytes; fewer at the end of the tar."""
        block = self._read(size)
        self._headers += block
        return block

    def skip(self, size: int) -> None:
        """Skip content, hashing it.

        Raises:
            TarError: the tar ends within it.
        """
        self.headers_begin()
        self.lost = self.lost or len(self.held) + size > self.limit
        while size:
            block = self._read(min(size, _READ_BYTES))
            if not block:
                raise TarError(f"it ends {size} bytes too early")
            self._hold(block)
            size -= len(block)

    def drain(self) -> int:
        """Read to the end of the file without holding it; return the bytes in blocks that are not all zeros."""
        content_bytes = 0
        while block := self._read(_READ_BYTES):
            content_bytes += len(block) if block.count(0) < len(block) else 0
        return content_bytes

    def _read(self, size: int) -> bytes:
        block = self._file.read(size)
        self.sha256.update(block)
        self.position += len(block)
        return block

    def _hold(self, block: bytes | bytearray) -> None:
        self.lost = self.lost or len(self.held) + len(block) > self.limit
        if self.lost:
            self.held = bytearray()
        else:
            self.held += block


def _entry(tape: _Tape) -> _MemberHeader | None:
    """Read the next member's headers; None at the end-of-archive mark.

    Raises:
        TarError: the bytes are no headers.
        EOFError: the tar ends here.
    """
    start, extension = tape.headers_begin(), Extension()
    while any(header := tape.header(TAR_BLOCK)):
        if start == 0 and (packing := _packing(header)):
            raise TarError(
                f"it is packed with {packing}, and of a packed tar no single sample can be read; unpack it"
            )
        if len(header) < TAR_BLOCK:
            raise TarError("it ends inside a header")
        check_sum(header)
        name, size, kind = fields(header)
        if not is_extension(kind):
            size = size if extension.size is None else extension.size
            return _MemberHeader(start, key_and_suffix(extension.name or name, kind), size)
        if tape.position + size - start > MAX_EXTENSION_BYTES:
            raise TarError(f"a name of {size} bytes")
        extension.add(kind, tape.header(padded_size(size))[:size])
    if not header:
        raise EOFError
    return None


def _packing(start: bytes) -> str | None:
    return next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)
