"""Common description of the latents of several datasets."""

from collections.abc import Sequence

from reelweave.loader.dataset.latents import Latents
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import first_difference


def common(stored: Sequence[tuple[str, Latents | None]]) -> Latents | None:
    """Return the description of latents that all datasets of a blend share; None if none has any.

    A microbatch has one bucket and may hold samples of several datasets, so a bucket is stored in all of them or in
    none.

    Args:
        stored: root of each dataset, and the description of its latents.

    Raises:
        UsageError: datasets differ in tokenizer, text encoder, dtype or shapes.
    """
    (root, first), *rest = stored
    for other_root, other in rest:
        if (first is None) != (other is None):
            with_, without = (other_root, root) if first is None else (root, other_root)
            raise UsageError(
                f"{with_} holds latents and {without} does not: blend versions that both have them, or set"
                " stream.latents=false where the clips are there"
            )
        if first and other and (differs := first_difference(_alike(first), _alike(other))):
            raise UsageError(
                f"latents of {root} and {other_root} cannot be blended: {differs}".removesuffix(" now")
            )
    return first


def _alike(latents: Latents) -> dict[str, object]:
    """Return the facts that must agree between blended datasets."""
    shared_fields = latents.model_dump(mode="json", include={"tokenizer", "shapes", "dtype"})
    text = None if latents.text is None else latents.text.encoder
    stored = {
        f"{bucket.frames}x{bucket.height}x{bucket.width}": bucket.latent is not None
        for bucket in latents.buckets
    }
    return {**shared_fields, "text": text, "stored": stored}
