"""Requests on the objects below an S3 prefix: retried, with errors in words."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from reelweave.loader.errors import RunError, first_line
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.names import check_path, check_prefix
from reelweave.loader.storage.remote.retry import FAULTS, retry
from reelweave.loader.storage.s3.client import client_of
from reelweave.loader.storage.s3.faults import explain_error

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import (
        HeadObjectOutputTypeDef,
        HeadObjectRequestTypeDef,
        ListObjectsV2OutputTypeDef,
        ListObjectsV2RequestTypeDef,
        ObjectIdentifierTypeDef,
    )

T = TypeVar("T")
Answer = TypeVar("Answer", bound=Mapping[str, Any])


@dataclass
class S3Requests:
    """Requests on objects of ``bucket`` below ``prefix`` ("" for the whole bucket).

    Attributes:
        bucket: name of the bucket.
        prefix: path below which all objects lie.
        config: limits and retries.
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

    def below(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def key(self, path: str) -> str:
        return self.below(check_path(path))

    def call(
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
            raise explain_error(error, uri, self.bucket, self.config, reading=reading) from None
        except RecursionError:  # botocore recurses when a bucket redirects from region to region
            raise RunError(
                f"{uri}: the endpoint redirects without end; check its address and the region"
            ) from None
        except (ResponseParserError, ValueError) as error:  # malformed XML or date
            raise RunError(
                f"{uri}: the endpoint answers what is no answer of S3: {first_line(error)}"
            ) from error

    def head(self, path: str, *, checksums: bool = False) -> HeadObjectOutputTypeDef:
        key = self.key(path)
        request: HeadObjectRequestTypeDef = {"Bucket": self.bucket, "Key": key}
        if checksums:
            request["ChecksumMode"] = "ENABLED"
        try:
            head = self.call(path, lambda s3: s3.head_object(**request), reading=True)
            return require_fields(head, ("ContentLength", "ETag"), self.uri(path))
        except FileNotFoundError:
            if (
                not self._bucket_seen
            ):  # a HEAD response does not distinguish a missing bucket from a missing object
                self.call(
                    path,
                    lambda s3: s3.list_objects_v2(Bucket=self.bucket, Prefix=key, MaxKeys=1),
                    reading=True,
                )
                self._bucket_seen = True
            raise

    def pages(self, prefix: str) -> Iterator[ListObjectsV2OutputTypeDef]:
        request: ListObjectsV2RequestTypeDef = {
            "Bucket": self.bucket,
            "Prefix": self.below(check_prefix(prefix)),
        }
        while True:
            try:
                page = self.call(prefix, lambda s3: s3.list_objects_v2(**request))
            except FileNotFoundError:  # every bucket has a listing, even if empty
                raise RunError(
                    f"{self.uri(prefix)}: the endpoint knows no listing (404); check its address and the bucket"
                ) from None
            for listed in page.get("Contents", ()):
                require_fields(listed, ("Key", "Size", "ETag"), self.uri(prefix))
            yield page
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return
            if token == request.get("ContinuationToken"):
                raise RunError(f"{self.uri(prefix)}: the endpoint lists the same page again and again")
            request["ContinuationToken"] = token

    def delete_keys(self, s3: S3Client, keys: Iterable[str]) -> None:
        self.delete_objects(s3, [{"Key": key} for key in keys])

    def delete_objects(self, s3: S3Client, objects: Sequence[ObjectIdentifierTypeDef]) -> None:
        answer = s3.delete_objects(Bucket=self.bucket, Delete={"Objects": objects, "Quiet": True})
        if failed := answer.get("Errors"):
            raise ClientError({"Error": {"Code": failed[0].get("Code", "")}}, "DeleteObjects")


def require_fields(answer: Answer, names: Sequence[str], uri: str) -> Answer:
    """Return ``answer`` if it contains the fields that every S3 server sends."""
    for name in names:
        if name not in answer:
            raise RunError(f"{uri}: the endpoint's answer has no {name}; check the endpoint and its proxies")
    return answer
