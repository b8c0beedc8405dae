"""How to reach a storage and how long to be patient with it."""

from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator

from loader.storage.reach import check_prefix_uri


class StorageConfig(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Settings of S3 and the web; a local folder needs none.

    Credentials are no part of it: boto3 finds them (environment, profile, role) in each process.
    """

    endpoint_url: str | None = Field(None, description="S3 endpoint, http(s)://host[:port]; AWS when unset")
    region: str | None = Field(None, description="region of the bucket; boto3's own choice when unset")
    max_attempts: int = Field(8, ge=1, le=100, description="tries in a row without progress before giving up")
    backoff_base_s: float = Field(
        0.2, ge=0, description="longest pause after the first failed try; then doubled"
    )
    backoff_cap_s: float = Field(20.0, ge=0, description="longest pause after any failed try")
    connect_timeout_s: float = Field(10.0, gt=0, description="longest wait for a connection")
    read_timeout_s: float = Field(
        60.0, gt=0, description="longest silence of a server, and longest wait for all headers of an answer"
    )
    request_timeout_s: float = Field(
        3600.0,
        gt=0,
        description="longest time for one request and all its tries: a block, a page of a listing, a part that"
        " is written, the whole file of a server without byte ranges",
    )
    lease_s: float = Field(
        60.0,
        ge=1,
        description="an S3 output whose writer did not renew its lease for so long may be taken over",
    )
    part_mib: int = Field(
        32, ge=5, le=5120, description="files above this are uploaded in parts of this size"
    )
    block_mib: int = Field(8, ge=1, description="read-ahead of an open object, fetched by one request")
    cache_mib: int = Field(
        8192,
        ge=0,
        description="disk space in the temporary folder for each open remote object, so that every block is"
        " fetched once and servers without byte ranges can be read; 0 for none",
    )
    node_folder: Path | None = Field(
        None,
        description="folder on a disk of this machine where one process keeps the plan indices of remote datasets"
        " for all; the temporary folder when unset",
    )
    allowed_prefixes: tuple[str, ...] = Field(
        (),
        description="what lists on the web and on S3 may name besides what lies where they lie:"
        " https://host/folder/, s3://bucket/folder/, /folder/; https:// for every public host",
    )
    allow_private: bool = Field(
        False,
        description="whether names in lists, and redirects, may lead to addresses that are not public: this"
        " machine, your network",
    )
    max_redirects: int = Field(5, ge=0, le=20, description="redirects of a web server that are followed")
    min_rate_kib_s: float = Field(
        4.0, ge=0, description="servers of the web and of S3 that send slower count as silent"
    )

    @field_validator("endpoint_url")
    @classmethod
    def _refuse_secrets(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write it as http(s)://host[:port]")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("leave out user, password and query; credentials come from the AWS environment")
        return url

    @field_validator("allowed_prefixes")
    @classmethod
    def _check_prefixes(cls, prefixes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_prefix_uri, prefixes))
