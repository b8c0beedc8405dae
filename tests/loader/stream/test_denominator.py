"""Weights of a stream: by default every sample of an epoch counts alike, whatever the plan."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from reelweave.loader.batch import Batch
from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import BUCKETS, SHAPES, config, make_sample, write

KINDS = [*SHAPES, (1, (80, 64)), (5, (64, 80))]
SHAPED = BUCKETS.model_copy(update={"frames": (1, 5, 9)})


def mixture(counts: list[int], folder: Path) -> Dataset:
    """A dataset with a number of samples of each kind; they are not decoded."""
    kinds = [kind for kind, count in zip(KINDS, counts, strict=True) for _ in range(count)]
    samples = [make_sample(f"key{n:03}", b"bytes of a clip", *kind) for n, kind in enumerate(kinds)]
    return open_dataset(write(folder, samples))


def read(dataset: Dataset, ranks: int, **how: object) -> list[Batch]:
    how = {"decode": False, "workers": 1, "readers": 1, **how}
    return [batch for rank in range(ranks) for batch in VideoStream(dataset, config(**how), rank, ranks)]


def test_the_mean_over_the_steps_is_the_mean_over_the_samples() -> None:
    from hypothesis import HealthCheck, assume, given, settings
    from hypothesis import strategies as st

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        counts=st.lists(st.integers(0, 9), min_size=len(KINDS), max_size=len(KINDS)),
        ranks=st.integers(1, 4),
        microbatches=st.integers(1, 4),
        regime=st.sampled_from(["step", "slot", "pack"]),
        memory=st.integers(72, 1000),
        seed=st.integers(0, 2**32 - 1),
    )
    def means(counts: list[int], ranks: int, microbatches: int, regime: str, memory: int, seed: int) -> None:
        assume(sum(counts) >= ranks * microbatches)
        values = np.random.default_rng(seed).normal(1.0, 1.0, sum(counts))
        with tempfile.TemporaryDirectory() as folder:
            dataset = mixture(counts, Path(folder))
            buckets = SHAPED.model_copy(update={"memory_tokens": memory})
            how = {"buckets": buckets, "regime": regime, "microbatches": microbatches, "seed": seed}
            batches = read(dataset, ranks, denominator="epoch", **how)
        for epoch in (0, 1):
            own = [batch for batch in batches if batch.epoch == epoch]
            steps = len({batch.step for batch in own})
            sums = [batch.weight * np.mean([values[int(key[3:])] for key in batch.keys]) for batch in own]
            assert sum(sums) / steps == pytest.approx(values.mean(), rel=1e-12, abs=1e-12)
            for step in {batch.step for batch in own}:
                assert sum(batch.share for batch in own if batch.step == step) == pytest.approx(1, rel=1e-12)

    means()


def test_the_default_counts_all_samples_alike(tmp_path: Path) -> None:
    assert StreamConfig.model_fields["denominator"].default == "epoch"
    dataset = mixture([9, 0, 0, 3, 0, 0, 0], tmp_path)
    by_epoch = read(dataset, 1, denominator="epoch", epochs=1)
    by_step = read(dataset, 1, denominator="step", epochs=1)
    assert [batch.keys for batch in by_epoch] == [batch.keys for batch in by_step]
    each = {batch.weight / len(batch.keys) for batch in by_epoch}
    assert max(each) == pytest.approx(min(each))
    assert len({batch.weight / len(batch.keys) for batch in by_step}) > 1
    assert [batch.share for batch in by_epoch] == pytest.approx([batch.weight for batch in by_step])
