"""What is trained on of a sample, from the bytes it has in its shard."""

from typing import NamedTuple

from loader.dataset.latents import CONTEXT, LATENT
from loader.dataset.tars.media import caption_of, media_suffix
from loader.dataset.tars.tar_samples import read_sample
from loader.errors import RunError


class TrainingSample(NamedTuple):
    """A sample for training.

    Attributes:
        key: of the sample.
        caption: of the sample.
        media: the encoded video or image; empty where only its latents are there.
        upright: whether its pixels are known to be upright and square, as those of every clip that was curated.
        latent: the .npy file of its latents, if any.
        context: the .npy file of its caption's context, if any.
    """

    key: str
    caption: str
    media: memoryview
    upright: bool
    latent: memoryview | None = None
    context: memoryview | None = None


def training_sample(region: bytes | memoryview, foreign: bool) -> TrainingSample:
    """The clip in the bytes of a sample, headers and all.

    Args:
        region: these bytes.
        foreign: whether somebody else wrote them, so that the caption may stand elsewhere.

    Raises:
        RunError: they are not those of one sample, or it has neither pictures nor latents.
    """
    key, members = read_sample(region)
    suffix = media_suffix(members)
    if foreign:
        if suffix is None:
            raise RunError("it has no member with pictures")
        return TrainingSample(key, caption_of(members)[0], members[suffix], upright=False)
    latent = members.get(LATENT)
    if suffix is None and latent is None:
        raise RunError("it has no member with pictures, and no latents")
    media = memoryview(b"") if suffix is None else members[suffix]
    if "txt" not in members:
        raise RunError("it has no caption, member txt")
    caption = bytes(members["txt"]).decode(errors="replace")
    return TrainingSample(key, caption, media, upright=True, latent=latent, context=members.get(CONTEXT))
