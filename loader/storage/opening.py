"""From a URI to the storage it means."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

from loader.errors import UsageError
from loader.storage.base import Storage
from loader.storage.config import StorageConfig
from loader.storage.local import LocalStorage
from loader.storage.names import check_path, redacted

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)
_S3 = re.compile(r"s3://([A-Za-z0-9._-]+)(?:/(.*))?", re.IGNORECASE | re.DOTALL)


def open_storage(
    uri: str | os.PathLike[str],
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> Storage:
    """The storage whose root is ``uri``: a local folder, ``file:///folder`` or ``s3://bucket/prefix``.

    Nothing is read or created yet; a missing bucket or refused access shows at the first use. Keys of
    S3 are written as they are, only ``file://`` is percent-decoded.

    Raises:
        UsageError: the URI is of another kind.
    """
    text = os.fspath(uri)
    if not text:
        raise UsageError("an empty path names no storage; give a folder or s3://bucket/prefix")
    if match := _S3.fullmatch(text):
        from loader.storage.s3 import S3Storage

        prefix = (match[2] or "").removesuffix("/")
        return S3Storage(match[1], check_path(prefix) if prefix else "", config)
    if match := _FILE.fullmatch(text):
        text = unquote(match[1])
    elif _SCHEME.match(text):
        raise UsageError(
            f"cannot open {redacted(text)}; give a local folder, file:///folder or s3://bucket/prefix"
        )
    if Path(text).is_file():
        raise UsageError(f"{text} is a file; give a folder")
    return LocalStorage(Path(text).absolute())


def open_object(
    uri: str | os.PathLike[str],
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> tuple[Storage, str]:
    """The storage that holds the single object ``uri``, and the object's path in it.

    Raises:
        UsageError: as `open_storage`, or the URI names a folder or a bucket.
    """
    folder, slash, name = os.fspath(uri).rpartition("/")
    if not name or folder.lower() == "s3:/":
        raise UsageError(f"{redacted(os.fspath(uri))} names no object; give the full path of a file")
    if _FILE.fullmatch(folder + slash):
        name = unquote(name)
    return open_storage(folder + slash or ".", config), check_path(name)
