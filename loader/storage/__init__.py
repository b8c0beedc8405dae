"""Storage of bytes: local folders, S3 prefixes and web servers behind one interface."""

from loader.storage.base import ObjectInfo, Storage
from loader.storage.config import StorageConfig
from loader.storage.leases.lease import leased
from loader.storage.names import public_url
from loader.storage.opening import open_object, open_storage
from loader.storage.web.web import SilentError, WebError

__all__ = [
    "ObjectInfo",
    "SilentError",
    "Storage",
    "StorageConfig",
    "WebError",
    "leased",
    "open_object",
    "open_storage",
    "public_url",
]
