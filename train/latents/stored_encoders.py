"""Encoders that a run need not load, because its datasets store their outputs."""

from collections.abc import Sequence

import torch

from reelweave.loader.dataset.latents import Latents, array_of
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import differences
from reelweave.train.config.parts import EncodersConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import ALONE, World
from reelweave.train.latents.identity import text_identity, tokenizer_identity
from reelweave.train.models.encoders.stored import StoredEncoders


def find_stored(
    config: EncodersConfig,
    latents: Sequence[Latents | None],
    empty: bytes | None,
    world: World | None = None,
) -> StoredEncoders:
    """Return the encoders that need not be loaded.

    Args:
        config: configuration of the encoders.
        latents: stored latents of each stream; None: it has none.
        empty: .npy file of the empty caption's context; None if it is not stored.
        world: ranks of the run, of which the first compares the files of encoders; None: this process alone.

    Raises:
        UsageError: latents or contexts come from other encoders than configured.
    """
    present = [dataset_latents for dataset_latents in latents if dataset_latents is not None]
    on_first(world or ALONE, lambda: _check_encoders(config, present))
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


def _check_encoders(config: EncodersConfig, present: Sequence[Latents]) -> None:
    for latents in present:
        if latents.channels is not None:
            _check(latents.tokenizer, tokenizer_identity(config.tokenizer), "train.tokenizer", latents.source)
        if latents.text is not None:
            _check(latents.text.encoder, text_identity(config) or {}, "train.text", latents.source)


def _check(made_with: dict[str, object], required: dict[str, object], key: str, source: str) -> None:
    difference = next(differences(made_with, required), None)
    if difference is None:
        return
    name, before, now = difference
    if name.endswith("files"):  # digests, which tell a person nothing
        said = f"the files of {'.'.join([key, *name.split('.')[:-1], 'name'])} were others"
    else:
        said = f"{key}.{name} was {before!r} and is {now!r} now"
    raise UsageError(
        f"the latents made from {source} are of another encoder: {said}; train with the one they were made with, or"
        " make another version with `reelweave latents`"
    )
