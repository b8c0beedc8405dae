"""Frozen parts of a run: which files they had when a checkpoint was written, and whether these are the same now."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage.checksums import each_sha256
from reelweave.train.checkpoint.state import FrozenPart
from reelweave.train.config.lora import LoraConfig, adapters_file, adapters_files
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.config.parts import ModulesConfig, TextConfig, TokenizerConfig
from reelweave.train.config.text import PublishedTextConfig, TransformersTextConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.config.vae import VaeTrainConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import World
from reelweave.train.models.published.experts import ALL_TIMES, other_expert, times_of
from reelweave.train.models.published.folder import (
    DESCRIPTION,
    PIPELINE,
    TOKENIZER_FILES,
    hashed_description,
    part_folder,
    words_folder,
)

FrozenParts = Mapping[str, FrozenPart]
"""Frozen parts by their key in the configuration, such as ``train.tokenizer.name``."""

_log = logging.getLogger(__name__)


def frozen_parts(modules: ModulesConfig, encoders: bool = True) -> dict[str, FrozenPart]:
    """Return the frozen parts of a run as they are now; reads all of their files, several at a time.

    These are the VAE, text encoders with their tokenizers, and the description of a published model. The base
    weights of adapters are in `reelweave.train.sampling.trained.base`.

    Args:
        modules: modules of the run.
        encoders: False leaves VAE and text encoders out.

    Raises:
        UsageError: a part is missing.
        RunError: a file cannot be read.
    """
    parts = {}
    model = modules.model
    if isinstance(model, DiffusersConfig) and (description := _describe(model, modules.lora)):
        parts["train.model.name"] = FrozenPart(name=model.name, files=description)
    return parts | (_encoders(modules.tokenizer, modules.text) if encoders else {})


def other_expert_part(
    model: ModelConfig | DiffusersConfig, lora: Path | None = None
) -> dict[str, FrozenPart]:
    """Return the part that validation samples with beside the expert in training; empty for models of one.

    Args:
        model: model of the run.
        lora: adapters of the other expert.

    Raises:
        UsageError: it is missing.
        RunError: a file cannot be read.
    """
    if not isinstance(model, DiffusersConfig) or times_of(model) == ALL_TIMES:
        return {}
    key = "train.model.other_expert"
    part = published_part(model.name, other_expert(model).subfolder, key)
    adapters = {} if lora is None else _digests(adapters_files(lora), str(adapters_file(lora).parent), "")
    return {key: FrozenPart(name=model.name, files=part.files | adapters)}


def _encoders(tokenizer: TokenizerConfig, text: TextConfig) -> dict[str, FrozenPart]:
    parts = {}
    if isinstance(tokenizer, DiffusersVAEConfig):
        key = "train.tokenizer.name"
        parts[key] = published_part(tokenizer.name, tokenizer.subfolder, key)
    if isinstance(text, TransformersTextConfig):
        parts["train.text.name"] = _encoder(text, "train.text.name")
        if text.pooled is not None:
            parts["train.text.pooled.name"] = _encoder(text.pooled, "train.text.pooled.name")
    return parts


def vae_parts(config: VaeTrainConfig, losses: bool = True) -> dict[str, FrozenPart]:
    """Return the frozen parts of a run as they are now, by their key.

    These are the published VAE's description and, under ``model.frozen_encoder``, its weights, a description of
    another architecture, and the network of LPIPS.

    Args:
        config: the run.
        losses: False leaves the network of LPIPS out.

    Raises:
        UsageError: a part is missing.
        RunError: a file cannot be read.
    """
    model, lpips = config.model, config.losses.lpips if losses else None
    parts = {
        "train.model.name": published_part(
            model.name, model.subfolder, "train.model.name", weights=model.frozen_encoder
        )
    }
    files = {"train.model.architecture": model.architecture}
    files |= {"train.losses.lpips.backbone": lpips.backbone if lpips else None}
    for key, path in files.items():
        if path is None:
            continue
        parts[key] = FrozenPart(name=str(path.parent), files=_digests([path], str(path.parent), ""))
    return parts


def published_part(name: str, subfolder: str, key: str, weights: bool = True) -> FrozenPart:
    """Return one part of a pipeline: its description, and with ``weights`` all of its safetensors.

    Args:
        name: name on the hub or folder, as in `part_folder`.
        subfolder: subfolder of the part.
        key: configuration key, for errors.
        weights: False leaves the weights out.
    """
    folder = part_folder(name, subfolder, key, weights)
    files = sorted(folder.glob("*.safetensors")) if weights else []
    described = {_below(folder / DESCRIPTION, name, subfolder): hashed_description(folder, key)}
    return FrozenPart(name=name, files=described | _digests(files, name, subfolder))


def read_parts(world: World, read: Callable[[], FrozenParts]) -> dict[str, FrozenPart]:
    """Return frozen parts that the first rank reads, on all ranks; a collective."""
    values = on_first(world, lambda: {key: part.model_dump() for key, part in read().items()})
    return {key: FrozenPart.model_validate(part) for key, part in values.items()}


def check_parts(
    uri: str, saved: FrozenParts | None, now: FrozenParts, act: Literal["refuse", "accept"]
) -> None:
    """Check that the frozen parts are those that a checkpoint was trained with.

    Args:
        uri: the checkpoint.
        saved: parts that it names; None: it is of an earlier version, and goes on with a warning.
        now: parts at hand.
        act: what to do about others: refuse them, or accept them with a warning.

    Raises:
        UsageError: there are others.
    """
    # Of earlier versions nothing is known: say so, and go on.
    if saved is None:
        if now:
            _log.warning(
                "%s is of an earlier version, which did not store the files of its %s: whether they are the same"
                " cannot be told",
                uri,
                ", ".join(sorted(now)),
            )
        return
    # Otherwise each file that differs is named, and refused unless accepted.
    changes = [
        f"{change} ({key})"
        for key in sorted(saved.keys() & now.keys())
        for change in _changes(uri, saved[key], now[key])
    ]
    if not changes:
        return
    if act == "refuse":
        raise UsageError(
            f"{'; '.join(changes)}. Put the old files back, train into another folder, or go on with what is there now"
            " by train.checkpoint.changed_parts=accept"
        )
    for change in changes:
        _log.warning("%s", change)


def _changes(uri: str, saved: FrozenPart, now: FrozenPart) -> Iterable[str]:
    for file in sorted(saved.files.keys() | now.files.keys()):
        path = Path(now.name) / file
        if file not in now.files:
            yield f"{path} is gone, with which {uri} was trained"
        elif file not in saved.files:
            yield f"{path} is new, {uri} was trained without it"
        elif saved.files[file] != now.files[file]:
            yield f"{path} is another file than the one that {uri} was trained with"


def _describe(model: DiffusersConfig, lora: LoraConfig | None) -> dict[str, str]:
    """Return what describes a published model; its weights are in checkpoints, or are the base of adapters."""
    files = {}
    if lora is None:
        files = published_part(model.name, model.subfolder, "train.model.name", weights=False).files
    if (times := times_of(model)) != ALL_TIMES:
        files = files | {PIPELINE: hashlib.sha256(json.dumps(times).encode()).hexdigest()}
    return files


def _encoder(config: PublishedTextConfig, key: str) -> FrozenPart:
    encoder = published_part(config.name, config.subfolder, key)
    folder = words_folder(config.name, config.tokenizer_subfolder, key)
    words = sorted(path for path in folder.glob("*") if path.suffix in TOKENIZER_FILES)
    # A repository may hold encoder and tokenizer in one folder.
    return FrozenPart(
        name=config.name, files=_digests(words, config.name, config.tokenizer_subfolder) | encoder.files
    )


def _digests(files: list[Path], name: str, subfolder: str) -> dict[str, str]:
    try:
        digests = each_sha256(files)
    except OSError as error:
        raise RunError(
            f"{error.filename or name} cannot be read: {error.strerror}; see to its permissions and disk"
        ) from error
    return {_below(path, name, subfolder): digest for path, digest in zip(files, digests, strict=True)}


def _below(path: Path, name: str, subfolder: str) -> str:
    """Return a file's path below a folder, or below the repository of a name on the hub."""
    root = Path(name)
    return (path.relative_to(root) if root.is_dir() else Path(subfolder) / path.name).as_posix()
