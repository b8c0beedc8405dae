"""Scan of all samples of an uncompressed MDS shard in one pass and bounded memory."""

import hashlib
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np

from reelweave.loader.base.arrays import IndexArray
from reelweave.loader.dataset.tars.mds import MdsColumns, mds_key
from reelweave.loader.dataset.tars.tar_scan import MAX_SAMPLE_BYTES, Member, TarSample
from reelweave.loader.errors import RunError

MAX_SHARD_SAMPLES = 1 << 26
_MAX_HEADER_BYTES = 1 << 20
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class MdsShard:
    """Shard as its ``index.json`` lists it.

    Attributes:
        path: path below the dataset.
        size: bytes of the file.
        samples: number of samples.
        sha256: checksum, where the index has one; "" else.
        columns: columns of its samples.
    """

    path: str
    size: int
    samples: int
    sha256: str
    columns: MdsColumns


@dataclass
class MdsScan:
    """One pass over a shard in bounded memory; iterate once, then read the attributes, which are those of a `TarScan`.

    Attributes:
        file: open file at the start of the shard.
        shard: what the dataset's index says of it.
        max_sample_bytes: size above which samples have a problem and are not held in memory.
        sha256: checksum of the whole shard.
        size: size of the shard in bytes.
        damage: damages of the shard itself, one sentence each.
    """

    file: BinaryIO
    shard: MdsShard
    max_sample_bytes: int = MAX_SAMPLE_BYTES
    sha256: str = ""
    size: int = 0
    damage: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[TarSample]:
        """Yield the samples in the shard's order, unusable ones with their problem."""
        self._digest = hashlib.sha256()
        try:
            offsets = self._offsets()
            for number in range(self.shard.samples):
                yield self._sample(offsets.item(number), offsets.item(number + 1))
        except EOFError:
            self.damage.append(f"ends at byte {self.size}, before what its table of samples says")
        except RunError as error:
            self.damage.append(str(error))
        while self._read(_READ_BYTES):
            pass
        self.sha256 = self._digest.hexdigest()
        if self.shard.sha256 and self.shard.sha256 != self.sha256:
            self.damage.append("has another SHA-256 than index.json says")

    def _offsets(self) -> IndexArray:
        """Read the head of the shard and return where its samples begin, and the end of the last one.

        Raises:
            RunError: it is no such table, or of other columns than the index says.
            EOFError: the shard ends within it.
        """
        samples = self.shard.samples
        [count] = struct.unpack("<I", self._exactly(4))
        if count != samples or 4 * (samples + 2) > self.shard.size:
            raise RunError(f"holds {count} samples by its own head, and index.json says {samples}")
        offsets = np.frombuffer(self._exactly(4 * (samples + 1)), "<u4").astype(np.int64)
        begin = 4 * (samples + 2)
        if offsets.item(0) < begin or (np.diff(offsets) < 0).any() or offsets.item(-1) > self.shard.size:
            raise RunError("has a table of samples that does not rise, or leads out of the file")
        if offsets.item(0) - begin > _MAX_HEADER_BYTES:
            raise RunError(f"has a head of {offsets.item(0) - begin} bytes, more than any writer needs")
        self._check_columns(self._exactly(offsets.item(0) - begin))
        return offsets

    def _check_columns(self, head: bytes) -> None:
        columns = self.shard.columns.columns
        try:
            stated = json.loads(head)
            lists = [stated[f"column_{name}"] for name in ("names", "encodings", "sizes")]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise RunError("has a head that is no description of columns") from error
        expected = [[getattr(column, name) for column in columns] for name in ("name", "encoding", "size")]
        if lists != expected:
            raise RunError("has other columns by its own head than index.json says")

    def _sample(self, start: int, end: int) -> TarSample:
        """Read one sample; skip one that is too large."""
        size, key = end - start, mds_key(self.shard.path, start)
        if size > self.max_sample_bytes:
            while size:
                size -= len(self._exactly(min(size, _READ_BYTES)))
            problem = f"has more than {self.max_sample_bytes} bytes, too many to look at"
            return TarSample(key, start, end - start, (), None, problem)
        region = self._exactly(size)
        try:
            places = tuple(self.shard.columns.locate(region))
        except RunError as error:
            return TarSample(key, start, size, (), None, str(error))
        members = tuple(Member(suffix, start + at, length) for suffix, at, length in places)
        return TarSample(key, start, size, members, region)

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) < size:
            raise EOFError
        return data

    def _read(self, size: int) -> bytes:
        data = self.file.read(size)
        self._digest.update(data)
        self.size += len(data)
        return data
