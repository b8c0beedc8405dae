"""Storage below an S3 prefix."""

from __future__ import annotations

import functools
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import uuid4

from botocore.exceptions import ClientError

from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.names import LEASE
from reelweave.loader.storage.remote.blocks import BlockReader
from reelweave.loader.storage.s3.checksums import whole_check
from reelweave.loader.storage.s3.download import read_range
from reelweave.loader.storage.s3.faults import code_of
from reelweave.loader.storage.s3.requests import S3Requests
from reelweave.loader.storage.s3.upload import WRITE_ID, abort_uploads, regroup_chunks, upload_parts, wrote

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

_KEYS_AT_ONCE = 1000  # limit of one deletion request
_MIB = 1 << 20
_MAX_PARTS = 10_000


@dataclass
class S3Storage(S3Requests):
    """Objects of ``bucket`` below ``prefix`` ("" for the whole bucket); see `Storage` for the methods.

    `create` needs a server that supports If-None-Match on PUT (AWS since 2024).
    """

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        above = len(self.below(""))
        for page in self.pages(prefix):
            for listed in page.get("Contents", ()):
                path = listed["Key"][above:]
                # Consoles create keys ending in a slash to show empty folders.
                if not path.endswith("/") and path != LEASE:
                    yield ObjectInfo(path, listed["Size"], listed["ETag"].strip('"'))

    def stat(self, path: str) -> ObjectInfo | None:
        try:
            head = self.head(path)
        except FileNotFoundError:
            return None
        return ObjectInfo(path, head["ContentLength"], head["ETag"].strip('"'))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            raise RunError(
                f"cannot read {self.uri(path)}: no object has bytes {start} to {start + (length or 0)}"
            )
        if length != 0:
            return read_range(self, path, start, length)
        self.head(path)  # raises for a missing object, since an empty range sends no request
        return b""

    def open(self, path: str) -> BinaryIO:
        head = self.head(path, checksums=True)
        config = self.config

        def fetch(start: int, length: int) -> bytes:
            try:
                return read_range(self, path, start, length, head["ETag"])
            except FileNotFoundError:  # callers of read() take an OSError for the end of the file
                raise MachineError(f"{self.uri(path)} disappeared while it was read") from None

        return io.BufferedReader(
            BlockReader(
                fetch,
                head["ContentLength"],
                config.block_mib * _MIB,
                config.cache_mib * _MIB,
                whole_check(head),
                self.uri(path),
            )
        )

    def write(self, path: str, data: bytes) -> None:
        key = self.key(path)
        self.call(path, lambda s3: s3.put_object(Bucket=self.bucket, Key=key, Body=data))

    def write_file(self, path: str, source: Path) -> None:
        with source.open("rb") as content:
            self.write_chunks(
                path, iter(functools.partial(content.read, _MIB), b""), os.fstat(content.fileno()).st_size
            )

    def write_chunks(self, path: str, chunks: Iterable[bytes | memoryview], size: int) -> None:
        part = max(self.config.part_mib * _MIB, -(-size // _MAX_PARTS))
        if size <= part:
            self.write(path, b"".join(chunks))
        else:
            upload_parts(self, path, regroup_chunks(chunks, part))

    def create_file(self, path: str, source: Path) -> bool:
        size = source.stat().st_size
        part = max(self.config.part_mib * _MIB, -(-size // _MAX_PARTS))
        if size <= part:
            return self.create(path, source.read_bytes())
        with source.open("rb") as content:
            return upload_parts(self, path, iter(functools.partial(content.read, part), b""), only_new=True)

    def create(self, path: str, data: bytes) -> bool:
        key, write_id = self.key(path), uuid4().hex

        def put(s3: S3Client) -> bool:
            try:
                s3.put_object(
                    Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={WRITE_ID: write_id}
                )
            except ClientError as error:
                if code_of(error) not in ("PreconditionFailed", "412"):
                    raise
                return False
            return True

        # The existing object may be ours, written by an attempt whose response was lost.
        return self.call(path, put) or wrote(self, path, write_id)

    def replace(self, path: str, data: bytes, version: str) -> bool:
        key, write_id = self.key(path), uuid4().hex

        def put(s3: S3Client) -> bool:
            try:
                s3.put_object(
                    Bucket=self.bucket,
                    Key=key,
                    Body=data,
                    IfMatch=f'"{version}"',
                    Metadata={WRITE_ID: write_id},
                )
            except ClientError as error:
                if code_of(error) not in ("PreconditionFailed", "412", "NoSuchKey"):
                    raise
                return False
            return True

        return self.call(path, put) or wrote(self, path, write_id)

    def delete(self, path: str) -> None:
        key = self.key(path)
        self.call(path, lambda s3: s3.delete_object(Bucket=self.bucket, Key=key))

    def delete_many(self, paths: Iterable[str]) -> None:
        rest = map(self.key, paths)
        while keys := list(itertools.islice(rest, _KEYS_AT_ONCE)):
            self.call("", functools.partial(self.delete_keys, keys=keys))

    def delete_tree(self, prefix: str) -> None:
        below = self.below(prefix)
        for page in self.pages(prefix):  # at most 1000 keys, the limit of one deletion request
            # A server that ignores the prefix of a listing must not cost others their objects, here and below.
            keys = [listed["Key"] for listed in page.get("Contents", ()) if listed["Key"].startswith(below)]
            if keys:
                self.call(prefix, functools.partial(self.delete_keys, keys=keys))

    def sweep(self) -> None:
        abort_uploads(self)

    def drop_versions(self) -> bool:
        below = self.below("")

        def old(s3: S3Client) -> Iterator[ObjectIdentifierTypeDef]:
            for page in s3.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=below):
                for version in page.get("Versions", ()):
                    if not version["IsLatest"] and version["Key"].startswith(below):
                        yield {"Key": version["Key"], "VersionId": version["VersionId"]}
                # Delete markers go with the versions, else deleted objects would remain.
                for marker in page.get("DeleteMarkers", ()):
                    if marker["Key"].startswith(below):
                        yield {"Key": marker["Key"], "VersionId": marker["VersionId"]}

        def drop(s3: S3Client) -> bool:
            try:
                versions = [*old(s3)]
                for first in range(0, len(versions), _KEYS_AT_ONCE):
                    self.delete_objects(s3, versions[first : first + _KEYS_AT_ONCE])
            except ClientError as error:
                if code_of(error) not in ("AccessDenied", "403", "NotImplemented", "MethodNotAllowed"):
                    raise
                return False
            return True

        return self.call("", drop)
