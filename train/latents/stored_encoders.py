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
    present = [dataset_latents for dataset_latents in latents if dataset_latents is not None]
    for dataset_latents in present:
        if dataset_latents.channels is not None:
            _check(
                dataset_latents.tokenizer,
                tokenizer_identity(config.tokenizer),
                "train.tokenizer",
                dataset_latents.source,
            )
        if dataset_latents.text is not None:
            _check(
                dataset_latents.text.encoder,
                text_identity(config) or {},
                "train.text",
                dataset_latents.source,
            )
    all_there = len(present) == len(latents)
    channels = (
        present[0].channels
        if all_there and all(dataset_latents.complete for dataset_latents in present)
        else None
    )
    texts = [dataset_latents.text for dataset_latents in present if dataset_latents.text is not None]
    if len(texts) < len(latents) or empty is None:
        return StoredEncoders(channels)
    array = array_of(empty, present[0].dtype, (None, texts[0].width), texts[0].empty)
    return StoredEncoders(channels, torch.from_numpy(array.copy()), texts[0].pooled_width)


def _check(made_with: dict[str, object], required: dict[str, object], key: str, source: str) -> None:
    if differs := first_difference(made_with, required):
        raise UsageError(
            f"the latents made from {source} are of another encoder: {key}.{differs}; train with the one they were"
            " made with, or make another version with `reelweave latents`"
        )
