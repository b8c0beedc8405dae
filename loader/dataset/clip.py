"""What is trained on of a sample, from the bytes it has in its shard."""

from typing import NamedTuple

from loader.dataset.media import caption_of, media_suffix
from loader.dataset.tar_samples import read_sample
from loader.errors import RunError


class Clip(NamedTuple):
    """A sample for training.

    Attributes:
        key: of the sample.
        caption: of the sample.
        media: the encoded video or image.
        upright: whether its pixels are known to be upright and square, as those of every clip that was curated.
    """

    key: str
    caption: str
    media: memoryview
    upright: bool


def clip_of(region: bytes | memoryview, foreign: bool) -> Clip:
    """The clip in the bytes of a sample, headers and all.

    Args:
        region: these bytes.
        foreign: whether somebody else wrote them, so that the caption may stand elsewhere.

    Raises:
        RunError: they are not those of one sample, or it has no pictures.
    """
    key, members = read_sample(region)
    suffix = media_suffix(members)
    if suffix is None:
        raise RunError("it has no member with pictures")
    caption = caption_of(members)[0] if foreign else bytes(members["txt"]).decode()
    return Clip(key, caption, members[suffix], upright=not foreign)
