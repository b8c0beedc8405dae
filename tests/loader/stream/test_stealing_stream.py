"""A flat stream of shared steps: the ends, states and samples of a plain stream, also behind new costs."""

from collections import Counter

import pytest
import torch.distributed as dist

from reelweave.loader.buckets.cost import PowerCost
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.samples.clip import TrainingSample
from reelweave.loader.errors import UsageError
from reelweave.loader.read.fetch import Fetched
from reelweave.loader.read.sample_reader import SampleReader
from reelweave.loader.stream.stealing.stealing_stream import StealingStream
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config

SHARED = WorkStealingConfig(share=0.5, piece=0.2, readers=2)


def test_its_steps_end_where_those_of_the_stream_do(dataset: Dataset) -> None:
    settings = config(epochs=2, microbatches=3)
    plain, shared = VideoStream(dataset, settings), VideoStream(dataset, settings)
    stealing = StealingStream(shared, dist.HashStore(), SHARED)
    steps, drawn = [], Counter()
    for batch in plain:
        drawn.update((batch.step, key) for key in batch.keys)
        if batch.ends_step:
            steps.append((plain.state_dict(), drawn))
            drawn = Counter()
    for step in stealing.iterate_steps():
        for batch in step:
            drawn.update((batch.step, key) for key in batch.keys)
        # Alone, a rank knows that nothing is left for it.
        assert batch.ends_step
        assert stealing.state_dict() == shared.state_after(batch)
        assert (stealing.state_dict(), drawn) == steps.pop(0)
        drawn = Counter()
    assert not steps


def test_new_costs_plan_the_next_pass(dataset: Dataset) -> None:
    settings = config(epochs=1, microbatches=2)
    stealing = StealingStream(VideoStream(dataset, settings), dist.HashStore(), SHARED)
    steps = stealing.iterate_steps()
    keys = [key for batch in next(steps) for key in batch.keys]
    assert stealing.recalibrate(PowerCost(exponent=1.5))
    assert stealing.cost == PowerCost(exponent=1.5)
    keys += [key for batch in stealing for key in batch.keys]
    assert sorted(keys) == sorted(key for batch in VideoStream(dataset, settings) for key in batch.keys)


def test_pieces_that_another_rank_ran_are_not_decoded(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, store = config(epochs=1, microbatches=3, prefetch=1), dist.HashStore()
    free, late = (StealingStream(VideoStream(dataset, settings, rank, 2), store, SHARED) for rank in (1, 0))
    # The free rank runs all pieces before the late one begins.
    step_of_free = next(steps_of_free := free.iterate_steps())
    taken = {key for batch in step_of_free for key in batch.keys}
    decoded, clip = [], SampleReader.clip

    def note(reader: SampleReader, row: int, fetched: Fetched) -> TrainingSample:
        sample = clip(reader, row, fetched)
        decoded.append(sample.key)
        return sample

    monkeypatch.setattr(SampleReader, "clip", note)
    steps_of_late = late.iterate_steps()
    ran = {key for batch in next(steps_of_late) for key in batch.keys}
    assert ran
    assert taken
    assert ran <= set(decoded)
    assert not taken & set(decoded)
    steps_of_free.close()


def test_loops_that_average_over_batches_are_refused_where_their_number_is_open(dataset: Dataset) -> None:
    stealing = StealingStream(VideoStream(dataset, config(microbatches=3)), dist.HashStore(), SHARED)
    first = next(iter(next(stealing.iterate_steps())))
    with pytest.raises(UsageError, match="which work stealing leaves open"):
        _ = first.average_weight
