"""Ed25519 signatures of a manifest, which contains the checksum of every file of its dataset.

With public keys, training can verify the publisher without being able to publish. The file contains the 64 bytes of the
signature and nothing else, as `openssl pkeyutl -verify -rawin` expects.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from reelweave.loader.base.named_file import read_named
from reelweave.loader.dataset.manifest import MANIFEST, MAX_MANIFEST_BYTES
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage.base import Storage

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = f"{MANIFEST}.sig"
_BYTES = 64
_MAX_KEY_BYTES = 1 << 16


def private_key(path: Path) -> "Ed25519PrivateKey":
    """Read the private key of a PEM file without a password.

    Raises:
        UsageError: the file contains no such key.
    """
    _check_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(read_named(path, _MAX_KEY_BYTES, f"the key {path}"), None)
    except (ValueError, TypeError) as error:
        raise _no_key(path, "private", "openssl genpkey -algorithm ed25519") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private", "openssl genpkey -algorithm ed25519")
    return key


def public_key(path: Path) -> "Ed25519PublicKey":
    """Read the public key of a PEM file.

    Raises:
        UsageError: the file contains no such key.
    """
    _check_library()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(read_named(path, _MAX_KEY_BYTES, f"the key {path}"))
    except ValueError as error:
        raise _no_key(path, "public", "openssl pkey -pubout") from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public", "openssl pkey -pubout")
    return key


def sign(storage: Storage, manifest: bytes, key: "Ed25519PrivateKey") -> None:
    """Write the signature of a manifest beside it.

    Args:
        storage: storage of the dataset.
        manifest: content of the verified manifest.
        key: private key of the publisher.

    Raises:
        RunError: the manifest has changed since.
    """
    if storage.read(MANIFEST, 0, MAX_MANIFEST_BYTES) != manifest:
        raise RunError(
            f"{storage.uri(MANIFEST)} was changed while it was verified; run the same command again"
        )
    storage.write(SIGNATURE, key.sign(manifest))


def problems(storage: Storage, key: "Ed25519PublicKey") -> Iterator[str]:
    """Yield the reason if a manifest lacks a valid signature by the key."""
    from cryptography.exceptions import InvalidSignature

    try:
        signature = storage.read(SIGNATURE, 0, _BYTES + 1)
    except FileNotFoundError:
        yield f"{SIGNATURE} is missing: the dataset is not signed; have its publisher run `reelweave verify --sign`"
        return
    try:
        key.verify(signature, storage.read(MANIFEST, 0, MAX_MANIFEST_BYTES))
    except InvalidSignature:
        yield (
            f"{SIGNATURE} is not this key's signature of {MANIFEST}: it was signed with another key, or changed since;"
            " have its publisher sign it again"
        )


def _check_library() -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError("signatures need a library: pip install 'reelweave[sign]'")


def _no_key(path: Path, kind: str, how: str) -> UsageError:
    return UsageError(f"{path} holds no {kind} Ed25519 key in PEM without a password; `{how}` makes one")
