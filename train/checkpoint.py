"""Checkpoints on disk: safetensors and JSON, whole or not there.

    OUT/checkpoints/step-000060/
        model.safetensors       trainable weights by name
        optimizer.safetensors   NAME.exp_avg, NAME.exp_avg_sq and NAME.step for each of them
        ema.safetensors         their averages by name, where the run keeps them
        state.json              format version, step, position of the stream, configuration

A checkpoint is written into a folder whose name starts with a dot, and gets its name when all of it is on
the disk; it loses its name before any of it is removed.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from loader.errors import RunError, UsageError
from train.parallel.pieces import copy_

FORMAT_VERSION = 1
MAX_STATE_BYTES = 1 << 20
# A header entry is a name, a type, a shape and two offsets; names of modules stay far below this.
MAX_HEADER_BYTES_PER_TENSOR = 4096
MODEL, OPTIMIZER, EMA, STATE = "model.safetensors", "optimizer.safetensors", "ema.safetensors", "state.json"

Tensors = Mapping[str, torch.Tensor]


class CheckpointState(BaseModel, frozen=True, extra="forbid"):
    """What a checkpoint knows besides its tensors."""

    format_version: int = Field(FORMAT_VERSION, description="of the folder's layout")
    step: int = Field(ge=0, description="optimizer steps done")
    stream: dict[str, Any] = Field(description="the stream's state behind the last step")
    config: dict[str, Any] = Field(description="the run's whole configuration")


def save(
    out: Path,
    state: CheckpointState,
    model: Tensors,
    optimizer: Tensors,
    keep_last: int,
    ema: Tensors | None = None,
) -> Path:
    """Writes a checkpoint and removes all but the ``keep_last`` newest; its folder."""
    root = out / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(".*"):
        shutil.rmtree(leftover)
    folder, aside = root / f"step-{state.step:06d}", root / f".step-{state.step:06d}"
    aside.mkdir()
    files = {MODEL: model, OPTIMIZER: optimizer} | ({EMA: ema} if ema else {})
    for name, tensors in files.items():
        save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, aside / name)
    (aside / STATE).write_text(json.dumps(state.model_dump(mode="json"), indent=1), encoding="utf-8")
    for path in (*aside.iterdir(), aside):
        _sync(path)
    aside.rename(folder)
    _sync(root)
    for old in _folders(out)[:-keep_last]:
        shutil.rmtree(old.rename(root / f".{old.name}"))
    return folder


def latest(out: Path) -> Path | None:
    """The checkpoint of the most steps, or None."""
    folders = _folders(out)
    return folders[-1] if folders else None


def read_state(folder: Path) -> CheckpointState:
    """The state of a checkpoint.

    Raises:
        RunError: it is damaged or of another format.
    """
    path = folder / STATE
    try:
        if path.stat().st_size > MAX_STATE_BYTES:
            raise RunError(f"{path} is larger than {MAX_STATE_BYTES} bytes: not a state of ours")
        state = CheckpointState.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise RunError(f"{path} is damaged; remove {folder} to go on from the checkpoint before") from error
    if state.format_version != FORMAT_VERSION:
        raise RunError(
            f"{path} has format version {state.format_version}, this program reads {FORMAT_VERSION}"
        )
    return state


def load_(path: Path, targets: Tensors) -> None:
    """Copies the tensors of a file into ``targets``; nothing is read before names and shapes agree.

    Raises:
        RunError: the file is damaged.
        UsageError: its tensors are not those of ``targets``.
    """
    content = sum(tensor.numel() * tensor.element_size() for tensor in targets.values())
    largest = content + MAX_HEADER_BYTES_PER_TENSOR * (1 + len(targets))
    try:
        if path.stat().st_size > largest:
            raise UsageError(f"{path} is larger than the {largest} bytes that this configuration can need")
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            stored = {name: file.get_slice(name) for name in names}
            if difference := _difference(stored, targets):
                raise UsageError(f"{path} does not fit this configuration: {difference}")
            with torch.no_grad():
                for name, target in targets.items():
                    copy_(target, file.get_tensor(name))
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"{path} is damaged; remove {path.parent} to go on from the checkpoint before"
        ) from error


def first_difference(saved: Any, current: Any, key: str = "") -> str | None:
    """The first key whose value differs between two configurations, and both values; None when equal."""
    if isinstance(saved, dict) and isinstance(current, dict):
        for name in sorted(saved.keys() | current.keys()):
            if found := first_difference(saved.get(name), current.get(name), f"{key}.{name}".lstrip(".")):
                return found
        return None
    return None if saved == current else f"{key} was {saved!r} and is {current!r} now"


def _difference(stored: Mapping[str, Any], targets: Tensors) -> str | None:
    """What differs between a file's tensors and those expected, in words."""
    found = []
    for name in sorted(stored.keys() | targets.keys()):
        if name not in stored:
            found.append(f"{name} is missing")
        elif name not in targets:
            found.append(f"{name} is not part of it")
        elif (shape := list(stored[name].get_shape())) != list(targets[name].shape):
            found.append(f"{name} has shape {shape} instead of {list(targets[name].shape)}")
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more or None


def _folders(out: Path) -> list[Path]:
    folders = [path for path in (out / "checkpoints").glob("step-*") if re.fullmatch(r"step-\d+", path.name)]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("step-")))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
