"""Checks of encoders before anything is hashed, loaded or started: a wrong folder is refused at once."""

from pathlib import Path

from reelweave.train.config.parts import EncodersConfig
from reelweave.train.config.text import PublishedTextConfig, TransformersTextConfig
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.encoders.text import check_text_type
from reelweave.train.models.published.folder import part_folder
from reelweave.train.models.published.vae import vae_class


def check_encoders(config: EncodersConfig, context: bool) -> None:
    """Check the encoders that lie in folders here; those on a hub are fetched when their files are hashed.

    Args:
        config: configuration of the encoders.
        context: true if captions are encoded.

    Raises:
        UsageError: a folder is missing, or its model is of an unknown class.
    """
    tokenizer, text = config.tokenizer, config.text
    if isinstance(tokenizer, DiffusersVAEConfig) and _is_path(tokenizer.name):
        folder = part_folder(tokenizer.name, tokenizer.subfolder, "tokenizer.name")
        vae_class(folder, tokenizer.name, "tokenizer.name")
    if context and isinstance(text, TransformersTextConfig):
        _check_text(text, "text")
        if text.pooled is not None:
            _check_text(text.pooled, "text.pooled")


def _check_text(config: PublishedTextConfig, key: str) -> None:
    if _is_path(config.name):
        part_folder(config.name, config.subfolder, f"{key}.name")
        check_text_type(config, key)


def _is_path(name: str) -> bool:
    """Return whether a name is a folder, or can only be meant as one."""
    return Path(name).is_dir() or name.startswith(("/", ".", "~")) or name.count("/") > 1
