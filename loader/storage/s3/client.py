"""S3 clients of this process."""

import base64
import functools
import hashlib
import re
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore import awsrequest
from botocore.config import Config
from botocore.loaders import create_loader

from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.remote.timeouts import RequestLimits, TimedConnection

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


_MAX_ANSWER_BYTES = 64 << 20
"""Maximum size of responses other than objects; a page of 1000 keys has at most 2 MiB."""

_LISTING = re.compile(r"[?&](?:list-type|uploads|versions)\b")


class _S3Connection(TimedConnection, awsrequest.AWSHTTPConnection):  # type: ignore[misc]
    def putrequest(self, method: str, url: str, *args: Any, **kwargs: Any) -> None:
        is_object = method == "GET" and not _LISTING.search(url)
        self.most_bytes = TimedConnection.most_bytes if is_object else _MAX_ANSWER_BYTES
        super().putrequest(method, url, *args, **kwargs)


class _TlsS3Connection(_S3Connection, awsrequest.AWSHTTPSConnection):  # type: ignore[misc]
    pass


@functools.cache
def _descriptions(data_path: str | None) -> Any:
    """Return botocore's descriptions of services; to read that of S3 takes most of the time of a client."""
    return create_loader(data_path)


@functools.lru_cache(maxsize=8)
def client_of(config: StorageConfig, pid: int) -> "S3Client":  # noqa: ARG001 - part of the key of the cache
    """Return this process's client for a configuration; threads may share it.

    Clients are cached to reuse connections. A forked process must not use its
    parent's client, hence ``pid``.
    """
    session = botocore.session.get_session()
    session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
    client = boto3.session.Session(botocore_session=session).client(
        "s3",
        endpoint_url=config.endpoint_url,
        region_name=config.region,
        config=Config(
            connect_timeout=config.connect_timeout_s,
            read_timeout=config.read_timeout_s,
            max_pool_connections=64,
            retries={"mode": "standard", "total_max_attempts": 1},
            # Older S3-compatible servers refuse trailing checksums, the default since 2025.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # Such servers seldom have a DNS name per bucket.
            s3={"addressing_style": "path"} if config.endpoint_url else None,
        ),
    )
    client.meta.events.register("before-call.s3.DeleteObjects", _sign_with_md5)
    _watch(client, RequestLimits.of(config))
    return client


def _watch(client: Any, limits: RequestLimits) -> None:
    """Time the client's requests; botocore's timeouts restart with every byte, and it offers no hook."""
    connection = type("Connection", (_S3Connection,), {"limits": limits})
    tls_connection = type("TlsConnection", (_TlsS3Connection,), {"limits": limits})
    # The session's pool managers, those of proxies included, share this table.
    client._endpoint.http_session._pool_classes_by_scheme.update(
        http=type("Pool", (awsrequest.AWSHTTPConnectionPool,), {"ConnectionCls": connection}),
        https=type("TlsPool", (awsrequest.AWSHTTPSConnectionPool,), {"ConnectionCls": tls_connection}),
    )


def _sign_with_md5(params: dict[str, Any], **_: object) -> None:
    """Send Content-MD5 with DeleteObjects, which all servers accept; boto3 sends a CRC32 since 1.36."""
    params["context"].pop("checksum", None)
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
