"""Where bytes live: a local folder or an S3 prefix behind one interface."""

from loader.storage.base import ObjectInfo, Storage
from loader.storage.config import StorageConfig
from loader.storage.opening import open_object, open_storage

__all__ = ["ObjectInfo", "Storage", "StorageConfig", "open_object", "open_storage"]
