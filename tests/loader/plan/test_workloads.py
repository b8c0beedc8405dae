"""Named mixtures: the samples that were promised, the same ones everywhere."""

import hashlib

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.loader.buckets.tokens import COMPRESSIONS, Compression, visual_tokens
from reelweave.loader.plan.policy import budgets_of
from reelweave.loader.simulation.workloads import WORKLOADS

SIZES = {name: workload.batch_sizes(workload.budgets) for name, workload in WORKLOADS.items()}


@pytest.mark.parametrize("name", WORKLOADS)
def test_shares_add_up_and_are_met(name: str) -> None:
    workload = WORKLOADS[name]
    assert sum(workload.shares) == pytest.approx(1)
    drawn = workload.draw(SIZES[name], 0, 0, 40_000)
    batch = np.array([size.batch for size in SIZES[name]])
    filled = np.bincount(drawn.bucket, minlength=len(batch))
    expected = workload.shares / batch * drawn.batch.sum()
    assert (np.abs(filled - expected) < 5 * np.sqrt(expected)).all()
    images = sum(
        share for bucket, share in zip(workload.buckets, workload.shares, strict=True) if bucket.frames == 1
    )
    assert drawn.images.sum() / drawn.batch.sum() == pytest.approx(images, abs=0.01)


@pytest.mark.parametrize("name", WORKLOADS)
def test_microbatches_are_padded_to_their_longest_caption(name: str) -> None:
    workload = WORKLOADS[name]
    drawn = workload.draw(SIZES[name], 3, 5, 500)
    visual = workload.visual_tokens()[drawn.bucket]
    fewest, most = workload.text_tokens
    assert (drawn.length >= visual + fewest).all()
    assert (drawn.length <= visual + most).all()
    assert (drawn.tokens <= drawn.batch * drawn.length).all()
    assert (drawn.tokens >= drawn.batch * (visual + fewest)).all()
    alone = drawn.batch == 1
    assert (drawn.tokens[alone] == drawn.length[alone]).all()


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_microbatch_is_over_the_memory_it_was_counted_with(name: str) -> None:
    workload = WORKLOADS[name]
    for sizes in (SIZES[name], workload.batch_sizes(budgets_of("equal_token", workload.budgets))):
        drawn = workload.draw(sizes, 1, 0, 4000)
        largest = (drawn.batch * drawn.length).max()
        assert 0.98 * workload.budgets.memory_tokens < largest <= workload.budgets.memory_tokens


def test_a_step_is_a_pure_function_for_ever() -> None:
    drawn = WORKLOADS["koala-wide"].draw(SIZES["koala-wide"], seed=7, step=2, count=256)
    columns = np.stack([drawn.bucket, drawn.batch, drawn.length, drawn.tokens, drawn.images])
    assert hashlib.sha256(columns.astype("<i8").tobytes()).hexdigest()[:16] == "5b13fead96940a69"
    other = WORKLOADS["koala-wide"].draw(SIZES["koala-wide"], seed=7, step=3, count=256)
    assert not np.array_equal(drawn.bucket, other.bucket)


def test_runs_of_one_bucket_are_drawn_on_request() -> None:
    drawn = WORKLOADS["koala-wide"].draw(SIZES["koala-wide"], 0, 0, 64, repeated=16)
    assert (drawn.bucket.reshape(4, 16) == drawn.bucket[::16, None]).all()


def test_a_compression_goes_by_the_name_of_its_model() -> None:
    assert Compression.model_validate("wan") == COMPRESSIONS["wan"]
    # Wan 2.1 makes 21 x 30 x 52 tokens of 81 frames of 480 x 832.
    assert visual_tokens(81, 480, 832, COMPRESSIONS["wan"]) == 21 * 30 * 52
    with pytest.raises(ValidationError, match="no model is called van; known are adaptiveload"):
        Compression.model_validate("van")
