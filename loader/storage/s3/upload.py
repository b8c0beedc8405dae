"""Writing S3 objects in parts, and recognizing an object that this process wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

from botocore.exceptions import ClientError

from reelweave.loader.errors import RunError
from reelweave.loader.storage.s3.faults import code_of
from reelweave.loader.storage.s3.requests import S3Requests

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import CompletedPartTypeDef, CompleteMultipartUploadRequestTypeDef

WRITE_ID = "reelweave-write"
"""Metadata key under which an object holds a random number of the call that wrote it."""

_log = logging.getLogger(__name__)


def upload_parts(
    requests: S3Requests, path: str, contents: Iterable[bytes], *, only_new: bool = False
) -> bool:
    """Upload an object in parts; return False if only a new one was wanted, and there is one."""
    key, write_id = requests.key(path), uuid4().hex
    upload_id = requests.call(
        path,
        lambda s3: s3.create_multipart_upload(Bucket=requests.bucket, Key=key, Metadata={WRITE_ID: write_id}),
    )["UploadId"]

    def put(part_number: int, content: bytes) -> CompletedPartTypeDef:
        answer = requests.call(
            path,
            lambda s3: s3.upload_part(
                Bucket=requests.bucket, Key=key, UploadId=upload_id, PartNumber=part_number, Body=content
            ),
        )
        return {"PartNumber": part_number, "ETag": answer["ETag"]}

    def complete(s3: S3Client) -> bool:
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": requests.bucket,
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
            if wrote(requests, path, write_id):
                return True
            if code == "NoSuchUpload" or not only_new:
                raise
            abort_upload(requests, key, upload_id)
            return False
        return True

    try:
        parts = [put(part_number, content) for part_number, content in enumerate(contents, 1)]
        return requests.call(path, complete)
    except BaseException:
        try:
            abort_upload(requests, key, upload_id)
        except RunError as error:
            _log.warning("parts of a failed upload may remain: %s", error)
        raise


def abort_uploads(requests: S3Requests) -> None:
    """Abort all unfinished uploads below the prefix."""
    below = requests.below("")
    uploads = requests.call(
        "",
        lambda s3: [
            upload
            for page in s3.get_paginator("list_multipart_uploads").paginate(
                Bucket=requests.bucket, Prefix=below
            )
            for upload in page.get("Uploads", ())
            if upload["Key"].startswith(below)
        ],
    )
    for upload in uploads:
        abort_upload(requests, upload["Key"], upload["UploadId"])


def abort_upload(requests: S3Requests, key: str, upload_id: str) -> None:
    """Abort one unfinished upload."""

    def abort(s3: S3Client) -> None:
        try:
            s3.abort_multipart_upload(Bucket=requests.bucket, Key=key, UploadId=upload_id)
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":  # completed or aborted by an attempt whose response was lost
                raise

    requests.call(key[len(requests.below("")) :], abort)


def wrote(requests: S3Requests, path: str, write_id: str) -> bool:
    """Return True if the call with this id wrote the object."""
    try:
        return write_id in requests.head(path)["Metadata"].values()  # servers change the case of the keys
    except FileNotFoundError:
        return False


def regroup_chunks(chunks: Iterable[bytes | memoryview], part: int) -> Iterator[bytes]:
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
