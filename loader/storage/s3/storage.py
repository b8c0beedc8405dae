"""Storage below an S3 prefix."""

from __future__ import annotations

import functools
import io
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from uuid import uuid4

from botocore.exceptions import ClientError, IncompleteReadError
from botocore.parsers import ResponseParserError

from loader.errors import ObjectError, RunError, first_line
from loader.storage.base import ObjectInfo
from loader.storage.config import StorageConfig
from loader.storage.names import LEASE, check_path, check_prefix
from loader.storage.remote.blocks import BlockReader
from loader.storage.remote.retry import FAULTS, retry
from loader.storage.s3.client import client_of
from loader.storage.s3.faults import code_of, explained

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        GetObjectRequestTypeDef,
        HeadObjectOutputTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
        ObjectIdentifierTypeDef,
    )

_KEYS_AT_ONCE = 1000  # limit of one deletion request

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Mapping[str, Any])

_log = logging.getLogger(__name__)

_MIB = 1 << 20
_CHUNK = 256 << 10  # bytes per read of a body, and so the maximum fetched twice after a broken connection
_MAX_PARTS = 10_000
_DELETED_AT_ONCE = 1000
_WRITE_ID = "reelweave-write"
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


@dataclass
class S3Storage:
    """Objects of ``bucket`` below ``prefix`` ("" for the whole bucket); see `Storage` for the methods.

    `create` needs a server that supports If-None-Match on PUT (AWS since 2024).
    """

    bucket: str
    prefix: str
    config: StorageConfig
    _bucket_seen: bool = field(default=False, init=False, repr=False, compare=False)

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        above = len(self._below(""))
        for page in self._pages(prefix):
            for found in page.get("Contents", ()):
                path = found["Key"][above:]
                # Consoles create keys ending in a slash to show empty folders.
                if not path.endswith("/") and path != LEASE:
                    yield ObjectInfo(path, found["Size"], found["ETag"].strip('"'))

    def stat(self, path: str) -> ObjectInfo | None:
        try:
            found = self._head(path)
        except FileNotFoundError:
            return None
        return ObjectInfo(path, found["ContentLength"], found["ETag"].strip('"'))

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        if start < 0 or (length is not None and length < 0):
            raise RunError(
                f"cannot read {self.uri(path)}: no object has bytes {start} to {start + (length or 0)}"
            )
        if length != 0:
            return self._get(path, start, length)
        self._head(path)  # raises for a missing object, since an empty range sends no request
        return b""

    def open(self, path: str) -> BinaryIO:
        found = self._head(path)
        config = self.config

        def fetch(start: int, length: int) -> bytes:
            try:
                return self._get(path, start, length, found["ETag"])
            except FileNotFoundError:  # callers of read() take an OSError for the end of the file
                raise ObjectError(f"{self.uri(path)} disappeared while it was read") from None

        return io.BufferedReader(
            BlockReader(fetch, found["ContentLength"], config.block_mib * _MIB, config.cache_mib * _MIB)
        )

    def write(self, path: str, data: bytes) -> None:
        key = self._key(path)
        self._call(path, lambda s3: s3.put_object(Bucket=self.bucket, Key=key, Body=data))

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
            self._write_parts(path, _regrouped(chunks, part))

    def create_file(self, path: str, source: Path) -> bool:
        size = source.stat().st_size
        part = max(self.config.part_mib * _MIB, -(-size // _MAX_PARTS))
        if size <= part:
            return self.create(path, source.read_bytes())
        with source.open("rb") as content:
            return self._write_parts(path, iter(functools.partial(content.read, part), b""), only_new=True)

    def create(self, path: str, data: bytes) -> bool:
        key, write_id = self._key(path), uuid4().hex

        def put(s3: S3Client) -> bool:
            try:
                s3.put_object(
                    Bucket=self.bucket, Key=key, Body=data, IfNoneMatch="*", Metadata={_WRITE_ID: write_id}
                )
            except ClientError as error:
                if code_of(error) not in ("PreconditionFailed", "412"):
                    raise
                return False
            return True

        # The existing object may be ours, written by an attempt whose response was lost.
        return self._call(path, put) or self._wrote(path, write_id)

    def replace(self, path: str, data: bytes, version: str) -> bool:
        key, write_id = self._key(path), uuid4().hex

        def put(s3: S3Client) -> bool:
            try:
                s3.put_object(
                    Bucket=self.bucket,
                    Key=key,
                    Body=data,
                    IfMatch=f'"{version}"',
                    Metadata={_WRITE_ID: write_id},
                )
            except ClientError as error:
                if code_of(error) not in ("PreconditionFailed", "412", "NoSuchKey"):
                    raise
                return False
            return True

        return self._call(path, put) or self._wrote(path, write_id)

    def delete(self, path: str) -> None:
        key = self._key(path)
        self._call(path, lambda s3: s3.delete_object(Bucket=self.bucket, Key=key))

    def delete_many(self, paths: Iterable[str]) -> None:
        rest = map(self._key, paths)
        while keys := list(itertools.islice(rest, _KEYS_AT_ONCE)):
            self._call("", functools.partial(self._delete_keys, keys=keys))

    def delete_tree(self, prefix: str) -> None:
        below = self._below(prefix)
        for page in self._pages(prefix):  # at most 1000 keys, the limit of one deletion request
            # A server that ignores the prefix of a listing must not cost others their objects, here and below.
            keys = [found["Key"] for found in page.get("Contents", ()) if found["Key"].startswith(below)]
            if keys:
                self._call(prefix, functools.partial(self._delete_keys, keys=keys))

    def sweep(self) -> None:
        below = self._below("")
        uploads = self._call(
            "",
            lambda s3: [
                upload
                for page in s3.get_paginator("list_multipart_uploads").paginate(
                    Bucket=self.bucket, Prefix=below
                )
                for upload in page.get("Uploads", ())
                if upload["Key"].startswith(below)
            ],
        )
        for upload in uploads:
            self._abort(upload["Key"], upload["UploadId"])

    def drop_versions(self) -> bool:
        below = self._below("")

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
                for first in range(0, len(versions), _DELETED_AT_ONCE):
                    self._delete_objects(s3, versions[first : first + _DELETED_AT_ONCE])
            except ClientError as error:
                if code_of(error) not in ("AccessDenied", "403", "NotImplemented", "MethodNotAllowed"):
                    raise
                return False
            return True

        return self._call("", drop)

    def _below(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _key(self, path: str) -> str:
        return self._below(check_path(path))

    def _call(
        self,
        path: str,
        operation: Callable[[S3Client], T],
        progress: Callable[[], int] = lambda: 0,
        *,
        reading: bool = False,
    ) -> T:
        uri = self.uri(path)
        try:
            return retry(lambda: operation(client_of(self.config, os.getpid())), self.config, uri, progress)
        except FAULTS as error:
            raise explained(error, uri, self.bucket, self.config, reading=reading) from None
        except RecursionError:  # botocore recurses when a bucket redirects from region to region
            raise RunError(
                f"{uri}: the endpoint redirects without end; check its address and the region"
            ) from None
        except (ResponseParserError, ValueError) as error:  # malformed XML or date
            raise RunError(
                f"{uri}: the endpoint answers what is no answer of S3: {first_line(error)}"
            ) from error

    def _head(self, path: str) -> HeadObjectOutputTypeDef:
        key = self._key(path)
        try:
            found = self._call(path, lambda s3: s3.head_object(Bucket=self.bucket, Key=key), reading=True)
            return _whole(found, ("ContentLength", "ETag"), self.uri(path))
        except FileNotFoundError:
            if (
                not self._bucket_seen
            ):  # a HEAD response does not distinguish a missing bucket from a missing object
                self._call(
                    path,
                    lambda s3: s3.list_objects_v2(Bucket=self.bucket, Prefix=key, MaxKeys=1),
                    reading=True,
                )
                self._bucket_seen = True
            raise

    def _pages(self, prefix: str) -> Iterator[ListObjectsV2OutputTypeDef]:
        request: ListObjectsV2RequestTypeDef = {
            "Bucket": self.bucket,
            "Prefix": self._below(check_prefix(prefix)),
        }
        while True:
            try:
                page = self._call(prefix, lambda s3: s3.list_objects_v2(**request))
            except FileNotFoundError:  # every bucket has a listing, even if empty
                raise RunError(
                    f"{self.uri(prefix)}: the endpoint knows no listing (404); check its address and the bucket"
                ) from None
            for found in page.get("Contents", ()):
                _whole(found, ("Key", "Size", "ETag"), self.uri(prefix))
            yield page
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            if token == request.get("ContinuationToken"):
                raise RunError(f"{self.uri(prefix)}: the endpoint lists the same page again and again")
            request["ContinuationToken"] = token

    def _get(self, path: str, start: int, length: int | None, etag: str = "") -> bytes:
        """Return bytes of one version of the object, resumed after broken connections."""
        key, data = self._key(path), io.BytesIO()
        changed = ObjectError(f"{self.uri(path)} changed while it was read; read it again from its start")

        def get(s3: S3Client) -> None:
            nonlocal etag
            begin = start + data.tell()
            request: GetObjectRequestTypeDef = {"Bucket": self.bucket, "Key": key}
            if begin or length is not None:
                request["Range"] = f"bytes={begin}-{'' if length is None else start + length - 1}"
            if etag:
                request["IfMatch"] = etag
            try:
                answer = s3.get_object(**request)
            except ClientError as error:
                if code_of(error) in ("InvalidRange", "416"):  # the range starts at or behind the end
                    return
                if code_of(error) in ("PreconditionFailed", "412"):
                    raise changed from None
                raise
            end = begin + _whole(answer, ("ContentLength", "ETag"), self.uri(path))["ContentLength"]
            if etag and answer["ETag"] != etag:  # the server ignores If-Match
                raise changed
            if "Range" in request:
                found = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
                if not found or int(found[1]) != begin:
                    raise RunError(
                        f"{self.uri(path)}: the server ignores byte ranges; check the endpoint and its proxies"
                    )
                # Servers may return less of a range than requested (RFC 9110, 15.3.7).
                size = end if found[2] == "*" else int(found[2])
                end = size if length is None else min(size, start + length)
            etag = answer["ETag"]
            with closing(answer["Body"]) as body:
                while chunk := body.read(_CHUNK):
                    data.write(chunk)
            arrived = start + data.tell()
            if arrived < end:
                raise IncompleteReadError(actual_bytes=arrived - begin, expected_bytes=end - begin)

        self._call(path, get, progress=data.tell, reading=True)
        return data.getvalue()

    def _write_parts(self, path: str, contents: Iterable[bytes], *, only_new: bool = False) -> bool:
        """Upload an object in parts; return False if only a new one was wanted, and there is one."""
        key, write_id = self._key(path), uuid4().hex
        upload_id = self._call(
            path,
            lambda s3: s3.create_multipart_upload(
                Bucket=self.bucket, Key=key, Metadata={_WRITE_ID: write_id}
            ),
        )["UploadId"]

        def put(number: int, content: bytes) -> CompletedPartTypeDef:
            answer = self._call(
                path,
                lambda s3: s3.upload_part(
                    Bucket=self.bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=content
                ),
            )
            return {"PartNumber": number, "ETag": answer["ETag"]}

        def complete(s3: S3Client) -> bool:
            request: CompleteMultipartUploadRequestTypeDef = {
                "Bucket": self.bucket,
                "Key": key,
                "UploadId": upload_id,
                "MultipartUpload": {"Parts": parts},
            }
            if only_new:
                request["IfNoneMatch"] = "*"
            try:
                s3.complete_multipart_upload(**request)
            except ClientError as error:
                code = code_of(error)
                if code not in ("NoSuchUpload", "PreconditionFailed", "412"):
                    raise
                # An attempt whose response was lost may have completed the upload.
                if self._wrote(path, write_id):
                    return True
                if code == "NoSuchUpload" or not only_new:
                    raise
                self._abort(key, upload_id)
                return False
            return True

        try:
            parts = [put(number, content) for number, content in enumerate(contents, 1)]
            return self._call(path, complete)
        except BaseException:
            try:
                self._abort(key, upload_id)
            except RunError as error:
                _log.warning("parts of a failed upload may remain: %s", error)
            raise

    def _abort(self, key: str, upload_id: str) -> None:
        def abort(s3: S3Client) -> None:
            try:
                s3.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
            except ClientError as error:
                if (
                    code_of(error) != "NoSuchUpload"
                ):  # completed or aborted by an attempt whose response was lost
                    raise

        self._call(key[len(self._below("")) :], abort)

    def _wrote(self, path: str, write_id: str) -> bool:
        try:
            return write_id in self._head(path)["Metadata"].values()  # servers change the case of the keys
        except FileNotFoundError:
            return False

    def _delete_keys(self, s3: S3Client, keys: Iterable[str]) -> None:
        self._delete_objects(s3, [{"Key": key} for key in keys])

    def _delete_objects(self, s3: S3Client, objects: Sequence[ObjectIdentifierTypeDef]) -> None:
        answer = s3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
        if failed := answer.get("Errors"):
            raise ClientError({"Error": {"Code": failed[0].get("Code", "")}}, "DeleteObjects")


def _whole(answer: Answer, names: Sequence[str], uri: str) -> Answer:
    """Return ``answer`` if it contains the fields that every S3 server sends."""
    for name in names:
        if name not in answer:
            raise RunError(f"{uri}: the endpoint's answer has no {name}; check the endpoint and its proxies")
    return answer


def _regrouped(chunks: Iterable[bytes | memoryview], part: int) -> Iterator[bytes]:
    """Yield the same bytes in parts of equal size, except for the last one."""
    held = bytearray()
    for chunk in chunks:
        begin = 0
        while begin < len(chunk):
            end = begin + part - len(held)
            held += chunk[begin:end]
            begin = end
            if len(held) == part:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
