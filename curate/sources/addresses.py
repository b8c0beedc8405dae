"""Addresses of sources: what one names, whether it can be opened, and the sidecars beside it."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from reelweave.curate.frames.faults import fault_of
from reelweave.curate.sources.folder import SIDECAR_SUFFIXES, why_no_file
from reelweave.curate.sources.source_ref import SourceRef, stem_of
from reelweave.loader.errors import MachineError, RunError, UsageError
from reelweave.loader.storage import Storage, StorageConfig, UnansweredError, open_object, public_url
from reelweave.loader.storage.base import ObjectInfo
from reelweave.loader.storage.names import is_utf8, local_name, redact_uri

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_OPENED = re.compile(r"s3://[A-Za-z0-9._-]+(/|$)|file://(localhost)?/", re.IGNORECASE)
UNANSWERED = r"^https?://.*: (gave up after|.* was not asked for)|^https?://.* was not asked for"
"""Reasons of web sources whose servers may answer another day."""
_WEB = ("http://", "https://")


def is_unanswered(reason: str) -> bool:
    """Return whether a reason is that of a web server or network that gave no answer (`UnansweredError`)."""
    return re.match(UNANSWERED, reason) is not None


def redact_input(text: str) -> str:
    """Return an input for output and storage: in UTF-8, without user, password and signature."""
    if is_web(text):
        return public_url(text)
    if not is_utf8(text):  # a file URI can express any byte
        return local_name(str(Path(text).absolute()))
    return redact_uri(text) if is_remote(text) and not _OPENED.match(text) else text


def is_web(text: str) -> bool:
    """Return True for an address of the web."""
    return text.lower().startswith(_WEB)


def is_remote(text: str) -> bool:
    """Return True for an address with a scheme."""
    return SCHEME.match(text) is not None


def stat_of(uri: str, config: StorageConfig, listed_in: str) -> ObjectInfo | None:
    """Return size and version, or None for a missing object; names that a list may not contain cause no request.

    Raises:
        UsageError: The name is invalid, or forbidden in a list.
    """
    if not listed_in and not is_web(uri) and (uri in (".", "..") or uri.endswith(("/", "/.."))):
        return None
    storage, name = open_object(uri, config, listed_in)
    return storage.stat(name)


def looked_up(address: str, look: Callable[[], ObjectInfo | None]) -> SourceRef:
    """Return the source at an address, with its fault where it cannot be opened."""
    try:
        info = look()
    except UsageError as error:
        return lost_source(address, str(error))
    except (MachineError, UnansweredError) as error:
        return lost_source(address, str(error), undone=True)
    except Exception as error:  # noqa: BLE001 - fault_of raises errors of the environment again
        return lost_source(address, fault_of(error)[1])
    if info is None:
        return lost_source(address, "does not exist" if is_remote(address) else why_no_file(address))
    return source_at(address, info)


def source_at(uri: str, info: ObjectInfo) -> SourceRef:
    """Return the source at an address that exists."""
    return SourceRef(redact_input(uri), info.size, info.version, address=_secret_address(uri))


def lost_source(address: str, fault: str, undone: bool = False) -> SourceRef:
    """Return the source of an address that cannot be opened."""
    return SourceRef(
        redact_input(address), 0, "", fault=fault, undone=undone, address=_secret_address(address)
    )


def _secret_address(uri: str) -> str:
    return uri if is_web(uri) and redact_input(uri) != uri else ""


def with_sidecars_beside(
    source: SourceRef, text: str, config: StorageConfig, listed_in: str = ""
) -> SourceRef:
    """Return a source with the versions of its sidecars, for which servers of the web are not asked.

    Args:
        source: The source.
        text: Address of the source.
        config: Storage settings.
        listed_in: URI of the list that names it; "" for an input of the user.
    """
    if is_web(text):
        return source
    storage, name = open_object(text, config, listed_in)
    sidecars = ((suffix, sidecar_of(storage, stem_of(name) + suffix)) for suffix in sorted(SIDECAR_SUFFIXES))
    return with_sidecars(source, [version_of(suffix, info) for suffix, info in sidecars if info])


def sidecar_of(storage: Storage, path: str) -> ObjectInfo | None:
    """Return size and version of a sidecar; None where it is not there or cannot be looked at."""
    try:
        return storage.stat(path)
    except (RunError, UsageError):
        return None


def version_of(suffix: str, info: ObjectInfo) -> str:
    """Return a text that changes whenever a sidecar may have changed."""
    return f"{suffix} {info.size} {info.version}"


def with_sidecars(source: SourceRef, versions: Sequence[str]) -> SourceRef:
    """Return a source with the digest of its sidecars' versions."""
    if not versions:
        return source
    digest = hashlib.sha256("\0".join(sorted(versions)).encode()).hexdigest()
    return replace(source, sidecars=digest[:16])
