"""Opening of storages and objects by URI."""

import functools
import os
import re
from pathlib import Path
from urllib.parse import unquote

from reelweave.loader.base.argument_types import check_type, path_text
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.base import Storage
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.local import LocalStorage
from reelweave.loader.storage.names import check_path, redact_uri
from reelweave.loader.storage.reach.permissions import refusal

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_FILE = re.compile(r"file:(?://(?:localhost)?)?(/(?!/).*)", re.IGNORECASE | re.DOTALL)
_WEB = re.compile(r"https?://.*", re.IGNORECASE | re.DOTALL)
_S3 = re.compile(r"s3://([A-Za-z0-9._-]+)(?:/(.*))?", re.IGNORECASE | re.DOTALL)


def open_storage(
    uri: str | os.PathLike[str],
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    listed_in: str = "",
) -> Storage:
    """Open the storage with root ``uri``: a local folder, ``file:///``, ``s3://bucket/prefix`` or ``http(s)://``.

    Nothing is read or created; a missing bucket or refused access appears at the first use. S3 keys are taken
    literally, only ``file://`` is percent-decoded. Web storages are read-only.

    Args:
        uri: URI of the root.
        config: timeouts, limits and permissions.
        listed_in: URI of the list, manifest or blend that contains ``uri``; "" if the user gave it.

    Raises:
        UsageError: the URI is no text or path, its scheme is unknown, or `reelweave.loader.storage.reach.permissions`
            refuses it.
    """
    check_type(
        config,
        StorageConfig,
        "config",
        "give a StorageConfig; StorageConfig.model_validate(values) reads a dict",
    )
    storage = _storage(path_text(uri, "uri"), config, listed_in)
    _check_reach(storage.root, listed_in, config)
    if isinstance(storage, LocalStorage) and os.path.isfile(storage.folder):  # noqa: PTH113 - raises nothing
        raise UsageError(f"{storage.root} is a file; give a folder")
    return storage


def is_absent(storage: Storage) -> bool:
    """Return whether a storage is a local folder that does not exist."""
    return "://" not in storage.root and not os.path.lexists(storage.root)


def open_object(
    uri: str | os.PathLike[str],
    config: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
    listed_in: str = "",
) -> tuple[Storage, str]:
    """Open the storage of the single object ``uri``, and return it with the object's path, without any access.

    Args:
        uri: URI of the object.
        config: see `open_storage`.
        listed_in: see `open_storage`.

    Raises:
        UsageError: see `open_storage`; also if the URI names a folder or a bucket.
    """
    text = path_text(uri, "uri")
    if _WEB.fullmatch(text):
        storage, name = _open_web_object(text, config, listed_in)
    else:
        folder, slash, name = text.rpartition("/")
        if not name or folder.lower() == "s3:/":
            raise UsageError(f"{redact_uri(text)} names no object; give the full path of a file")
        if _FILE.fullmatch(folder + slash):
            name = unquote(name, errors="surrogateescape")
        elif (match := _S3.fullmatch(text)) and "//" in match[2]:  # prefixes cannot end in a slash
            folder, slash, name = f"s3://{match[1]}", "", match[2]
        storage, name = _storage(folder + slash or ".", config, listed_in), check_path(name)
    _check_reach(storage.uri(name), listed_in, config)
    return storage, name


def _storage(text: str, config: StorageConfig, listed_in: str) -> Storage:
    if not text:
        raise UsageError("an empty path names no storage; give a folder or s3://bucket/prefix")
    # Clients of S3 and of the web are imported where an address needs them.
    if match := _S3.fullmatch(text):
        from reelweave.loader.storage.s3.storage import S3Storage

        prefix = (match[2] or "").removesuffix("/")
        return S3Storage(match[1], check_path(prefix) if prefix else "", config)
    if _WEB.fullmatch(text):
        from reelweave.loader.storage.web.http import HttpStorage

        address, query = _split_query(text)
        return HttpStorage(address.rstrip("/"), config, query, listed_in)
    # All others are folders; any other scheme is no folder's name.
    if match := _FILE.fullmatch(text):
        text = unquote(match[1], errors="surrogateescape")
    elif _SCHEME.match(text):
        raise UsageError(
            f"cannot open {redact_uri(text)}; give a local folder, file:///folder, s3://bucket/prefix or http(s)://"
        )
    if "\0" in text:
        raise UsageError(f"{redact_uri(text)!r} is no path of this machine; leave out the NUL")
    folder = "" if text.startswith("/") else f"{os.getcwd()}/"  # noqa: PTH109 - text is asked for
    return LocalStorage(_path(f"{folder}{text}"))


_path = functools.lru_cache(256)(Path)  # files that a list names share few folders


def _open_web_object(text: str, config: StorageConfig, listed_in: str) -> tuple[Storage, str]:
    from reelweave.loader.storage.web.http import HttpStorage

    address, query = _split_query(text)
    folder, _, name = address.rpartition("/")
    if not name or folder.lower() in ("http:/", "https:/"):
        raise UsageError(f"{redact_uri(text)} names no object; give the full address of a file")
    return HttpStorage(folder, config, query, listed_in), check_path(name)


def _check_reach(uri: str, listed_in: str, config: StorageConfig) -> None:
    if problem := refusal(uri, listed_in, config.allowed_prefixes):
        raise UsageError(f"{redact_uri(uri)} {problem}")


def _split_query(text: str) -> tuple[str, str]:
    """Return address and query without the fragment, which is never sent."""
    address, _, query = text.partition("#")[0].partition("?")
    return address, query
