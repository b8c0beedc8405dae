"""Checks of what a stream reads against what its datasets have stored: latents, clips, or both."""

from collections.abc import Collection, Sequence

from reelweave.loader.blend import Blend
from reelweave.loader.blend.source import SampleSource
from reelweave.loader.buckets.assignment import Bucket, BucketConfig, shapes_of
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import first_difference


def check_shapes(latents: Latents, stages: Sequence[BucketConfig]) -> None:
    """Check that latents were stored for the buckets of all stages.

    Raises:
        UsageError: they were stored for others.
    """
    for buckets in stages:
        if differs := first_difference(latents.shapes, shapes_of(buckets)):
            raise UsageError(
                f"latents were stored for other buckets: stream.buckets.{differs}; train with the same, make another"
                " version with `reelweave latents`, or set stream.latents=false where the clips are there"
            )


def check_clips(source: SampleSource, shapes: Collection[Bucket]) -> None:
    """Check that no dataset has latents in place of clips that are to be read.

    Raises:
        UsageError: one has.
    """
    for dataset in source.datasets if isinstance(source, Blend) else (source,):
        latents = dataset.latents
        if latents is None or not isinstance(dataset, Dataset) or dataset.has_clips:
            continue
        lacking = [
            Bucket(bucket.frames, bucket.height, bucket.width)
            for bucket in latents.buckets
            if bucket.latent and bucket.samples
        ]
        if lacking and (latents.complete or not set(lacking).isdisjoint(shapes)):
            raise UsageError(
                f"{dataset.storage.root} has latents in place of the clips of bucket {lacking[0]}, and here clips are"
                f" read: take {latents.source}, or a version made with latents.clips=true"
            )
