"""Origin of adapters, as their file states it: the transformer and the weights that they were trained on."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.state import BaseWeights
from reelweave.train.config.lora import adapters_file

LORA_PART = "reelweave_subfolder"
"""Metadata of adapters: subfolder of the expert that they were trained on, where there are two."""
LORA_BASE = "reelweave_base"
"""Metadata of adapters: base weights that they were trained on, JSON with name and sha256."""


def stated_base(metadata: Mapping[str, str], subfolder: str, key: str, advice: str) -> BaseWeights | None:
    """Return the weights that adapters were trained on; None where their file does not say.

    Args:
        metadata: metadata of the file.
        subfolder: transformer that they are given for.
        key: option or key and file, for errors.
        advice: what to do where they are of another transformer.

    Raises:
        UsageError: they are of another transformer, or what the file says cannot be read.
    """
    # Adapters of one of Wan's experts would fit the other, too, and spoil it.
    if (part := metadata.get(LORA_PART, subfolder)) != subfolder:
        raise UsageError(
            f"{key}: its adapters were trained on {part}, and are given for {subfolder}: {advice}"
        )
    try:
        return BaseWeights.model_validate_json(metadata[LORA_BASE]) if LORA_BASE in metadata else None
    except ValueError as error:
        raise UsageError(f"{key}: its {LORA_BASE} is damaged") from error


def other_base(key: str, stated: BaseWeights | None, now: BaseWeights | None) -> str:
    """Return a sentence where adapters are used on other weights than their own; "" where nothing says so."""
    if stated is None or now is None or stated.sha256 == now.sha256:
        return ""
    return f"{key}: its adapters were trained on {stated}; the base weights are {now} here, and other weights"


def check_start(path: Path, subfolder: str, now: BaseWeights | None) -> str:
    """Check adapters that a run begins with; return a sentence where they were trained on other weights.

    Args:
        path: `lora.start_from`.
        subfolder: transformer of the run.
        now: weights under its adapters.

    Raises:
        UsageError: they are of the other one of two experts.
    """
    file = adapters_file(path)
    key = f"lora.start_from {file}"
    try:
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
    except (OSError, SafetensorError):
        return ""  # said where its tensors are read
    advice = "set model.subfolder to that one, or begin with adapters of this one"
    return other_base(key, stated_base(metadata, subfolder, key, advice), now)
