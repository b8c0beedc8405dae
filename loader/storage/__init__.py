"""Storage of bytes: local folders, S3 prefixes and web servers behind one interface."""

from reelweave.loader.storage.base import ObjectInfo, Storage
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.leases.lease import hold_lease
from reelweave.loader.storage.leases.watch import LeaseWatch, Writer
from reelweave.loader.storage.names import public_url
from reelweave.loader.storage.opening import is_absent, open_object, open_storage
from reelweave.loader.storage.web.web import SilentError, UnansweredError, WebError

__all__ = [
    "LeaseWatch",
    "ObjectInfo",
    "SilentError",
    "Storage",
    "StorageConfig",
    "UnansweredError",
    "WebError",
    "Writer",
    "hold_lease",
    "is_absent",
    "open_object",
    "open_storage",
    "public_url",
]
