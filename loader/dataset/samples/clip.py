"""Parsing of a sample's bytes into the content for training."""

from typing import NamedTuple

from reelweave.loader.dataset.latents import CONTEXT, LATENT
from reelweave.loader.dataset.tars.mds import MdsColumns
from reelweave.loader.dataset.tars.media import captions_of, media_suffix
from reelweave.loader.dataset.tars.tar_samples import read_sample
from reelweave.loader.errors import RunError


class TrainingSample(NamedTuple):
    """Content of one sample for training.

    Attributes:
        key: key of the sample.
        caption: caption of the sample.
        media: encoded video or image; empty if only latents are stored.
        upright: True if the pixels are known to be upright and square, as in all curated clips.
        latent: .npy file of its latents, if any.
        context: .npy file of its caption's context, if any.
        captions: all captions of a list in a tar of other origin, if it has several.
    """

    key: str
    caption: str
    media: memoryview
    upright: bool
    latent: memoryview | None = None
    context: memoryview | None = None
    captions: tuple[str, ...] = ()


def training_sample(
    region: bytes | memoryview, foreign: bool, mds: MdsColumns | None = None
) -> TrainingSample:
    """Parse the bytes of a sample, tar headers included.

    Args:
        region: bytes of the sample.
        foreign: True for tars of other origin, whose captions may be in other members.
        mds: columns of a sample of MDS, whose bytes hold no key; None for one of a tar.

    Raises:
        RunError: the bytes are not those of one sample, or contain neither pictures nor latents.
    """
    key, members = read_sample(region) if mds is None else ("", mds.read(region))
    suffix = media_suffix(members)
    if foreign:
        if suffix is None:
            raise RunError("it has no member with pictures")
        captions = captions_of(members)
        caption = captions[0] if captions else ""
        several = captions if len(captions) > 1 else ()
        return TrainingSample(key, caption, members[suffix], upright=False, captions=several)
    latent = members.get(LATENT)
    if suffix is None and latent is None:
        raise RunError("it has no member with pictures, and no latents")
    media = memoryview(b"") if suffix is None else members[suffix]
    if "txt" not in members:
        raise RunError("it has no caption, member txt")
    caption = bytes(members["txt"]).decode(errors="replace")
    return TrainingSample(key, caption, media, upright=True, latent=latent, context=members.get(CONTEXT))
