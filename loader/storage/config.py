"""Configuration of storage: endpoints, timeouts, retries, caches and permissions."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from reelweave.loader.settings import Settings
from reelweave.loader.storage.reach.permissions import check_prefix_uri


class StorageConfig(Settings, hide_input_in_errors=True):
    """Access to S3 and to web servers; local folders need no configuration.

    Credentials are not included: boto3 finds them (environment, profile, role) in each process.
    """

    endpoint_url: str | None = Field(None, description="S3 endpoint, http(s)://host[:port]; null: AWS")
    region: str | None = Field(None, description="region of the bucket; null: boto3's default")
    max_attempts: int = Field(
        8, ge=1, le=100, description="consecutive attempts without progress before giving up"
    )
    backoff_base_s: float = Field(
        0.2,
        ge=0,
        description="maximum pause in seconds after the first failed attempt; doubled after each further one",
    )
    backoff_cap_s: float = Field(20.0, ge=0, description="maximum pause in seconds after any failed attempt")
    connect_timeout_s: float = Field(10.0, gt=0, description="timeout of a connection attempt, in seconds")
    read_timeout_s: float = Field(
        60.0, gt=0, description="timeout between bytes of a response, and for all of its headers, in seconds"
    )
    request_timeout_s: float = Field(
        3600.0,
        gt=0,
        description="timeout in seconds of one request with all retries. A request is for a block, a page of a listing,"
        " an uploaded part, or the whole file of a server without byte ranges",
    )
    lease_s: float = Field(
        60.0,
        ge=1,
        description="seconds without renewal after which another writer may take over the lease of an S3 output",
    )
    part_mib: int = Field(
        32, ge=5, le=5120, description="part size in MiB of multipart uploads, which larger files use"
    )
    block_mib: int = Field(8, ge=1, description="MiB per request when an object is read in blocks")
    cache_mib: int = Field(
        8192,
        ge=0,
        description="MiB of temporary disk space per open remote object, which caches its blocks and makes servers"
        " without byte ranges readable; 0: no cache",
    )
    node_folder: Path | None = Field(
        None,
        description="folder on a local disk where one process stores the plan indices of remote datasets for all; null:"
        " the temporary folder",
    )
    allowed_prefixes: tuple[str, ...] = Field(
        (),
        description="prefixes that lists on the web and on S3 may refer to besides their own host or bucket."
        " Examples: https://host/folder/, s3://bucket/folder/, /folder/. https:// allows every public host",
    )
    allow_private: bool = Field(
        False,
        description="allow names in lists, and redirects, to lead to addresses that are not public: this machine,"
        " private networks",
    )
    max_redirects: int = Field(5, ge=0, le=20, description="maximum redirects followed per request")
    min_rate_kib_s: float = Field(
        4.0, ge=0, description="rate in KiB/s below which a web or S3 server counts as stalled"
    )

    @field_validator("endpoint_url")
    @classmethod
    def _refuse_secrets(cls, url: str | None) -> str | None:
        return None if url is None else check_endpoint(url, "credentials come from the AWS environment")

    @field_validator("allowed_prefixes")
    @classmethod
    def _check_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_prefix_uri, prefixes))


def check_endpoint(url: str, secrets: str) -> str:
    """Return the address of a server that requests go to, if it is one and holds no secrets.

    Args:
        url: the address.
        secrets: sentence that says where secrets come from instead.

    Raises:
        ValueError: it is none, or holds user, password or query.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("write it as http(s)://host[:port]")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"leave out user, password and query; {secrets}")
    return url
