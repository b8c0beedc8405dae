"""An epoch as a stream of microbatches."""

import numpy as np
import pytest

from loader.buckets import BucketConfig
from loader.epoch import EpochStream, epoch_stream
from loader.errors import UsageError
from loader.tokens import Compression
from tests.loader.samples import plan_index

CONFIG = BucketConfig(
    frames=(1, 9, 17),
    sizes=((64, 64), (64, 128)),
    compression=Compression(frames=8, height=16, width=16, causal=True),
    max_text_tokens=20,
    memory_tokens=400,
)


def stream(samples: int = 300, seed: int = 1) -> EpochStream:
    generator = np.random.default_rng(0)
    wide = generator.integers(0, 2, samples)
    index = plan_index(
        frames=generator.choice([1, 9, 10, 17, 25], samples),
        height=64,
        width=64 + 64 * wide,
        text_tokens=generator.integers(0, 40, samples),
    )
    return epoch_stream(index, CONFIG, seed)


def test_an_epoch_holds_every_sample_once() -> None:
    found = stream()
    held = found.epoch(0)
    counts = np.bincount(held.bucket, weights=held.batch, minlength=len(found.assignment.buckets))
    assert counts.tolist() == np.bincount(found.assignment.bucket_of, minlength=len(counts)).tolist()
    text = np.minimum(found.index.text_tokens, 20)
    visual = np.array(found.assignment.lengths)[found.assignment.bucket_of] - 20
    assert held.tokens.sum() == (text + visual).sum()
    images = np.array([bucket.frames == 1 for bucket in found.assignment.buckets])
    assert held.images.sum() == images[found.assignment.bucket_of].sum()


def test_epochs_and_seeds_differ_and_repeat() -> None:
    assert np.array_equal(stream().epoch(1).bucket, stream().epoch(1).bucket)
    assert not np.array_equal(stream().epoch(0).bucket, stream().epoch(1).bucket)
    assert not np.array_equal(stream(seed=1).epoch(0).bucket, stream(seed=2).epoch(0).bucket)


def test_steps_follow_each_other_through_the_epochs() -> None:
    found = stream()
    per_epoch = len(found.epoch(0)) // 8
    assert np.array_equal(found.step(1, 8).bucket, found.epoch(0).bucket[8:16])
    assert np.array_equal(found.step(per_epoch, 8).bucket, found.epoch(1).bucket[:8])
    with pytest.raises(UsageError, match="a step takes 5000; use fewer ranks"):
        found.step(0, 5000)


def test_runs_of_one_bucket_come_first_and_the_rest_is_not_lost() -> None:
    found = stream()
    runs, shuffled = found.epoch(0, repeated=4), found.epoch(0)
    assert sorted(zip(runs.bucket, runs.batch, runs.tokens, strict=True)) == sorted(
        zip(shuffled.bucket, shuffled.batch, shuffled.tokens, strict=True)
    )
    whole = sum(count // 4 for count in np.bincount(shuffled.bucket))
    assert whole > 5
    in_runs = runs.bucket[: 4 * whole].reshape(whole, 4)
    assert (in_runs == in_runs[:, :1]).all()
    assert len(set(in_runs[:, 0].tolist())) > 1
    assert in_runs[:, 0].tolist() != sorted(in_runs[:, 0].tolist())
