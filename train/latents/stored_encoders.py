"""Encoders that a run need not load, because its datasets store their outputs."""

from collections.abc import Sequence

import torch

from reelweave.loader.dataset.latents import Latents, array_of
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import first_difference
from reelweave.train.config.run import TrainConfig
from reelweave.train.latents.identity import text_identity, tokenizer_identity
from reelweave.train.models.encoders.stored import StoredEncoders


def stored(config: TrainConfig, latents: Sequence[Latents | None], empty: bytes | None) -> StoredEncoders:
    """Return the encoders that need not be loaded; compares encoder weights by file checksums.

    Args:
        config: configuration of the run.
        latents: stored latents of each stream; None: it has none.
        empty: .npy file of the empty caption's context; None if it is not stored.

    Raises:
        UsageError: latents or contexts come from other encoders than configured.
    """
    present = [one for one in latents if one is not None]
    for one in present:
        if one.channels is not None:
            _check(one.tokenizer, tokenizer_identity(config.tokenizer), "train.tokenizer", one.source)
        if one.text is not None:
            _check(one.text.encoder, text_identity(config) or {}, "train.text", one.source)
    all_there = len(present) == len(latents)
    channels = present[0].channels if all_there and all(one.complete for one in present) else None
    texts = [one.text for one in present if one.text is not None]
    if len(texts) < len(latents) or empty is None:
        return StoredEncoders(channels)
    array = array_of(empty, present[0].dtype, (None, texts[0].width), texts[0].empty)
    return StoredEncoders(channels, torch.from_numpy(array.copy()), texts[0].pooled_width)


def _check(made_with: dict[str, object], asked: dict[str, object], key: str, source: str) -> None:
    if differs := first_difference(made_with, asked):
        raise UsageError(
            f"the latents made from {source} are of another encoder: {key}.{differs}; train with the one they were"
            " made with, or make another version with `reelweave latents`"
        )
