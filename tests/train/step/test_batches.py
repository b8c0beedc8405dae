"""Shapes of a stream that a model does not take are refused before a run begins."""

from dataclasses import dataclass

import pytest

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.train.models.bundle import Bundle
from reelweave.train.step.batches import check_shapes
from tests.train.clips import ClipStream, tiny_config


@dataclass
class Shaped(ClipStream):
    """Clips, and shapes that come later."""

    shapes: tuple[Bucket, ...]


def test_every_shape_is_checked_and_named():
    bundle = Bundle(tiny_config())
    check_shapes(Shaped((Bucket(3, 16, 16), Bucket(5, 8, 16))), bundle)
    check_shapes(ClipStream(), bundle)
    for rare, said in (
        (Bucket(4, 16, 16), "4 frames do not fit"),
        (Bucket(3, 16, 18), "latents of 2x8x9 do not divide"),
    ):
        with pytest.raises(UsageError, match=f"stream.buckets .* has the shape {rare}: {said}"):
            check_shapes(Shaped((Bucket(3, 16, 16), rare)), bundle)
