"""Identity of encoders, which determines latents and contexts: configuration and file checksums, without loading."""

from pathlib import Path
from typing import Any

from reelweave.loader.storage.checksums import files_sha256
from reelweave.train.config.parts import EncodersConfig
from reelweave.train.config.text import PublishedTextConfig, TransformersTextConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig, PatchTransformConfig
from reelweave.train.models.published.folder import TOKENIZER_FILES, part_folder, part_sha256

_PLACE = {"name", "subfolder", "tokenizer_subfolder"}


def tokenizer_identity(config: PatchTransformConfig | DiffusersVAEConfig) -> dict[str, Any]:
    """Return JSON values; for a published VAE with the sha256 of config and weights, independent of their path.

    Raises:
        UsageError: the VAE is missing.
    """
    if isinstance(config, PatchTransformConfig):
        # Versions of before these keys carry neither.
        added = {name for name in ("kept", "normalized") if not getattr(config, name)}
        return config.model_dump(mode="json", exclude=added)
    folder = part_folder(config.name, config.subfolder, "tokenizer.name")
    identity = config.model_dump(mode="json", exclude=_PLACE | {"slicing"})
    return {**identity, "files": _model(folder, "tokenizer.name")}


def text_identity(config: EncodersConfig) -> dict[str, Any] | None:
    """Return JSON values as in `tokenizer_identity`; None for a trained encoder, whose contexts cannot be stored.

    Raises:
        UsageError: an encoder is missing.
    """
    text = config.text
    if not isinstance(text, TransformersTextConfig):
        return None
    identity = text.model_dump(mode="json", exclude=_PLACE | {"pooled"})
    pooled = None
    if text.pooled is not None:
        pooled = text.pooled.model_dump(mode="json", exclude=_PLACE) | _encoder(
            text.pooled, "text.pooled.name"
        )
    # Activations of the encoder have the dtype of training.
    return {**identity, **_encoder(text, "text.name"), "pooled": pooled, "activations": config.dtype}


def _encoder(config: PublishedTextConfig, key: str) -> dict[str, str]:
    files = _model(part_folder(config.name, config.subfolder, key), key)
    words = Path(config.name) / config.tokenizer_subfolder
    # On the hub, tokenizer and weights share one repository.
    tokenizer_files = (
        sorted(path for path in words.glob("*") if path.suffix in TOKENIZER_FILES) if words.is_dir() else []
    )
    return {"files": files, "tokenizer_files": files_sha256(tokenizer_files)}


def _model(folder: Path, key: str) -> str:
    """Return the sha256 of a model's config, without authorship fields, and of its weights."""
    return part_sha256(folder, key, sorted(folder.glob("*.safetensors")))
