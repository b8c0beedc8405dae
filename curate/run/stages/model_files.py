"""Files of the models that a configuration names: what a worker holds of them, and what tells two models apart.

A path says nothing of what lies there today, and another model runs anew. Contents are hashed whole, once: size, times
and inode of a file tell later runs that it is the same.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.models.hub import cached_folder, hub_commit
from reelweave.loader.storage.checksums import file_sha256, files_sha256

_NOTE = "models"
_FILES = ("*.json", "*.safetensors", "*.bin", "*.pth", "*.pt", "*.txt", "*.model", "*.jinja")
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt")


def digests_of(models: Mapping[str, Path | str], ledger: Ledger) -> dict[str, str]:
    """Return the identity of each model, by its key in the configuration.

    Args:
        models: Folder or file of each, or its name on a hub, by that key.
        ledger: where the hash of each file is kept.

    Raises:
        UsageError: a model is neither on this machine nor on the hub.
    """
    stored_digests = ledger.notes.read(_NOTE) or {}
    hashed = dict(stored_digests)
    digests = {key: _digest(model, hashed) for key, model in models.items()}
    if hashed != stored_digests:
        ledger.notes.write(_NOTE, hashed)
    return digests


def weights_bytes(model: Path | str) -> int:
    """Return the bytes of a model's weights; of the same weights in several formats those of the largest."""
    path_of_model = cached_folder(model) if isinstance(model, str) else model
    if path_of_model is None or not path_of_model.is_dir():
        return path_of_model.stat().st_size if path_of_model is not None and path_of_model.is_file() else 0
    sizes: dict[str, int] = defaultdict(int)
    for path in path_of_model.iterdir():
        if path.suffix in _WEIGHTS:
            sizes[path.suffix] += path.stat().st_size
    return max(sizes.values(), default=0)


def _digest(model: Path | str, hashed: dict[str, Any]) -> str:
    if isinstance(model, str):
        return hub_commit(model)
    files = (
        sorted({path for pattern in _FILES for path in model.glob(pattern)}) if model.is_dir() else [model]
    )
    return files_sha256(
        (path for path in files if path.is_file()), of=lambda path: _sha256(path.resolve(), hashed)
    )


def _sha256(path: Path, hashed: dict[str, Any]) -> str:
    """Return the hash of a file's content, from ``hashed`` while the file is the same."""
    stat = path.stat()
    # The time of the last change of the inode cannot be set back by a copy that keeps the others.
    mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    before = hashed.get(str(path), {})
    if before.get("mark") != mark:
        before = {"mark": mark, "sha256": file_sha256(path)}
        hashed[str(path)] = before
    return str(before["sha256"])
