"""All samples of a WebDataset tar by one pass over it, in bounded memory."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from loader.dataset.tars.tar_format import (
    MAX_EXTENSION_BYTES,
    TAR_BLOCK,
    Extension,
    TarError,
    check_sum,
    fields,
    is_extension,
    key_and_suffix,
    padded,
)

MAX_SAMPLE_BYTES = 2 * 2**30

_READ_BYTES = 4 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class Member:
    """A member of a sample: what stands behind the key, where its content begins in the tar, its bytes."""

    suffix: str
    offset: int
    size: int


@dataclass(frozen=True)
class TarSample:
    """A sample as it lies in a tar.

    Attributes:
        key: as webdataset says it.
        offset: of the first member's first header in the tar.
        size: bytes up to the end of the last member; 0 for a sample whose end is missing.
        members: in their order.
        region: these bytes; None for a sample that has a problem.
        problem: why it cannot be used, or "".
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
        file: at the tar's start.
        max_sample_bytes: larger samples have a problem, and are not held in memory.
        sha256: of the whole tar.
        size: of it, bytes.
        damage: what is wrong with the tar itself, one sentence each.
    """

    file: BinaryIO
    max_sample_bytes: int = MAX_SAMPLE_BYTES
    sha256: str = ""
    size: int = 0
    damage: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[TarSample]:
        """The samples in the order of the tar, those that cannot be used with their problem."""
        tape = _Tape(self.file, self.max_sample_bytes)
        current: _Current | None = None
        try:
            while (entry := _entry(tape)) is not None:
                if entry.found is None:
                    tape.skip(padded(entry.size))
                    continue
                key, suffix = entry.found
                if current is None or current.key != key:
                    if current is not None:
                        yield current.closed(tape)
                    tape.sample_begins()
                    current = _Current(key, entry.start)
                current.begin(Member(suffix, tape.position, entry.size))
                tape.skip(padded(entry.size))
                current.end = tape.position
            if left := tape.drain():
                self.damage.append(
                    f"holds {left} bytes behind its end-of-archive mark, where readers stop: joined tars, perhaps"
                )
        except EOFError:
            self.damage.append(
                f"ends at byte {tape.position} without an end-of-archive mark: what was written behind its last"
                " sample, or the last members of it, may be missing"
            )
        except TarError as error:
            at = tape.position
            tape.drain()
            lost = f"; {tape.position - at} bytes behind it were not looked at" if tape.position > at else ""
            self.damage.append(f"is damaged or cut off before byte {at}: {error}{lost}")
        if current is not None:
            yield current.closed(tape)
        self.sha256, self.size = tape.sha256.hexdigest(), tape.position


@dataclass(frozen=True)
class _Entry:
    """A member's headers were read: where they began, key and suffix, bytes of the content that follows."""

    start: int
    found: tuple[str, str] | None
    size: int


@dataclass
class _Current:
    key: str
    start: int
    end: int = 0  # 0 while a member is not read to its end
    members: list[Member] = field(default_factory=list)
    problem: str = ""

    def begin(self, member: Member) -> None:
        if any(member.suffix == other.suffix for other in self.members):
            self.problem = f"has two members .{member.suffix}"
        self.members.append(member)
        self.end = 0

    def closed(self, tape: "_Tape") -> TarSample:
        problem, size = self.problem, max(0, self.end - self.start)
        names = "".join([self.key, *(member.suffix for member in self.members)])
        if not size:
            problem = f"the tar ends inside its member .{self.members[-1].suffix}"
        elif tape.lost:
            problem = f"has more than {tape.limit} bytes, too many to look at"
        elif _shown(names) != names:
            problem = "has a name that is not UTF-8"
        region = None if problem else bytes(memoryview(tape.held)[:size])
        return TarSample(_shown(self.key), self.start, size, tuple(self.members), region, problem)


def _shown(name: str) -> str:
    return name.encode("utf-8", "replace").decode()


class _Tape:
    """Reads forward only, hashes all it reads, and holds what was read since the present sample began."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.limit = limit
        self.position = 0
        self.sha256 = hashlib.sha256()
        self.held = bytearray()
        self.lost = False  # the sample has more than may be held
        self._headers = bytearray()  # of the last member, which may begin the next sample
        self._file = file

    def headers_begin(self) -> int:
        """Here; what was read since the last call stays with the present sample."""
        self._hold(self._headers)
        self._headers = bytearray()
        return self.position

    def sample_begins(self) -> None:
        """The headers that were read last are the first of another sample."""
        self.held, self.lost = bytearray(), False

    def header(self, size: int) -> bytes:
        """The next bytes; fewer where the tar ends."""
        block = self._read(size)
        self._headers += block
        return block

    def skip(self, size: int) -> None:
        """Passes over content.

        Raises:
            TarError: the tar ends in it.
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
        """Reads to the end of the file and holds nothing of it; bytes in blocks that are not all zeros."""
        found = 0
        while block := self._read(_READ_BYTES):
            found += len(block) if block.count(0) < len(block) else 0
        return found

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


def _entry(tape: _Tape) -> _Entry | None:
    """The next member's headers; None at the end-of-archive mark.

    Raises:
        TarError: the bytes there are none.
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
            return _Entry(start, key_and_suffix(extension.name or name, kind), size)
        if tape.position + size - start > MAX_EXTENSION_BYTES:
            raise TarError(f"a name of {size} bytes")
        extension.add(kind, tape.header(padded(size))[:size])
    if not header:
        raise EOFError
    return None


def _packing(start: bytes) -> str | None:
    return next((name for magic, name in _PACKED.items() if start.startswith(magic)), None)
