"""Files of the models that a configuration names: what a worker holds of them, and what tells two models apart.

A path says nothing of what lies there today, and another model runs anew. Contents are hashed whole, once: size, times
and inode of a file tell later runs that it is the same.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.models.custom.configured import stage_class
from reelweave.curate.models.hub import cached, hub_commit, local_folder
from reelweave.loader.storage.checksums import file_sha256, files_sha256

_NOTE = "models"
_FILES = ("*.json", "*.safetensors", "*.bin", "*.pth", "*.pt", "*.txt", "*.model", "*.jinja")
_WEIGHTS = (".safetensors", ".bin", ".pth", ".pt")
_HUB, _FOLDER = "hf-hub:", "local-dir:"


def model_digests(config: CurateConfig, ledger: Ledger) -> dict[str, str]:
    """Return the identity of each model, by its key in the configuration.

    Args:
        config: names of the models: folders, files, or names on a hub.
        ledger: where the hash of each file is kept.

    Raises:
        UsageError: a model is neither on this machine nor on the hub.
    """
    stored_digests = ledger.read_note(_NOTE) or {}
    hashed = dict(stored_digests)
    digests = {key: _digest(model, hashed) for key, model in _models(config)}
    if hashed != stored_digests:
        ledger.write_note(_NOTE, hashed)
    return digests


def weights_mb(config: CurateConfig) -> dict[str, float]:
    """Return the size of the weights that each section of the configuration loads, megabytes.

    A model that must be downloaded first, or whose weights are its library's, counts nothing.
    """
    megabytes: dict[str, float] = defaultdict(float)
    for key, model in _models(config):
        megabytes[section_of(key)] += _weights_bytes(model) / 1e6
    return dict(megabytes)


def models_of(config: CurateConfig) -> dict[str, list[Path | str]]:
    """Return the models that each section of the configuration loads: folders and files, or names on a hub."""
    models: dict[str, list[Path | str]] = defaultdict(list)
    for key, model in _models(config):
        models[section_of(key)].append(model)
    return dict(models)


def section_of(key: str) -> str:
    """Return the section of a model's key: "captions" of "captions.model", "stages.NAME" of "stages.NAME.0"."""
    return key.rpartition(".")[0]


def _weights_bytes(model: Path | str) -> int:
    """Return the bytes of a model's weights; of the same weights in several formats those of the largest."""
    path_of_model = cached(model) if isinstance(model, str) else model
    if path_of_model is None or not path_of_model.is_dir():
        return path_of_model.stat().st_size if path_of_model is not None and path_of_model.is_file() else 0
    sizes: dict[str, int] = defaultdict(int)
    for path in path_of_model.iterdir():
        if path.suffix in _WEIGHTS:
            sizes[path.suffix] += path.stat().st_size
    return max(sizes.values(), default=0)


def _models(config: CurateConfig) -> Iterator[tuple[str, Path | str]]:
    """Yield the key of each model, and its folder or file, or its name on a hub."""
    if config.embed.backend == "open_clip":
        from reelweave.curate.models.open_clip_model import locate

        name, weights = locate(config.embed.model, config.embed.pretrained)
        if name.startswith(_FOLDER):
            yield "embed.model", Path(name.removeprefix(_FOLDER))
        elif name.startswith(_HUB):
            yield "embed.model", name.removeprefix(_HUB)
        elif weights is not None and Path(weights).is_file():
            yield "embed.pretrained", Path(weights)
        # Weights of a tag are the library's: the configuration says which.
    if config.aesthetic.weights is not None:
        yield "aesthetic.weights", Path(config.aesthetic.weights)
    # Behind an endpoint models have names and no files.
    captions = None if config.captions.backend == "endpoint" else config.captions.model
    for name, stage_config in config.stages.items():
        for index, model in enumerate(stage_class(stage_config.code).models(stage_config)):
            path = Path(model).expanduser()
            yield f"stages.{name}.{index}", path if path.is_file() else local_folder(model) or model
    for key, named in (
        ("captions.model", captions),
        ("captions.rewrite_model", config.captions.rewrite_model if captions else None),
        ("text_embed.model", config.text_embed.model),
    ):
        if named is not None:
            yield key, local_folder(named) or named


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
