"""Reading bytes of one version of an S3 object."""

from __future__ import annotations

import io
import re
from contextlib import closing
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError, IncompleteReadError

from reelweave.loader.errors import MachineError, RunError
from reelweave.loader.storage.s3.faults import code_of
from reelweave.loader.storage.s3.requests import S3Requests, require_fields

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectRequestTypeDef

_CHUNK = 256 << 10  # bytes per read of a body, and so the maximum fetched twice after a broken connection
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)")


def read_range(requests: S3Requests, path: str, start: int, length: int | None, etag: str = "") -> bytes:
    """Return bytes of one version of the object, resumed after broken connections."""
    key, data = requests.key(path), io.BytesIO()
    changed = MachineError(f"{requests.uri(path)} changed while it was read; read it again from its start")

    def get(s3: S3Client) -> None:
        nonlocal etag
        begin = start + data.tell()
        request: GetObjectRequestTypeDef = {"Bucket": requests.bucket, "Key": key}
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
        end = begin + require_fields(answer, ("ContentLength", "ETag"), requests.uri(path))["ContentLength"]
        if etag and answer["ETag"] != etag:  # the server ignores If-Match
            raise changed
        if "Range" in request:
            content_range = _CONTENT_RANGE.fullmatch(answer.get("ContentRange", ""))
            if not content_range or int(content_range[1]) != begin:
                raise RunError(
                    f"{requests.uri(path)}: the server ignores byte ranges; check the endpoint and its proxies"
                )
            # Servers may return less of a range than requested (RFC 9110, 15.3.7).
            size = end if content_range[2] == "*" else int(content_range[2])
            end = size if length is None else min(size, start + length)
        etag = answer["ETag"]
        with closing(answer["Body"]) as body:
            while chunk := body.read(_CHUNK):
                data.write(chunk)
        arrived = start + data.tell()
        if arrived < end:
            raise IncompleteReadError(actual_bytes=arrived - begin, expected_bytes=end - begin)

    requests.call(path, get, progress=data.tell, reading=True)
    return data.getvalue()
