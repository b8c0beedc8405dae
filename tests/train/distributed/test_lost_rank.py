"""The first rank that fails is named by all others, whatever they hear first."""

import re

import pytest

from tests.thorough import beyond, thorough
from tests.train.distributed.lost_ranks import (
    first_is_early,
    first_is_killed,
    in_other_words,
    late_to_hear,
    out_of_memory,
    told_by_a_rank_between,
)


@pytest.mark.parametrize("failed", beyond(1, [1, 0]))
def test_a_rank_is_named_to_those_that_look_after_the_store_could_be_gone(ranks, tmp_path, failed):
    ended = ranks.run(late_to_hear, 3, str(tmp_path), failed)
    assert ended.codes == [1, 1, 1], ended.errors
    assert "RunError: the disk is full" in ended.errors[failed]
    for rank in {0, 1, 2} - {failed}:
        assert f"RunError: rank {failed} was lost" in ended.errors[rank]


def test_a_rank_that_was_told_of_a_failure_does_not_count_as_failed(ranks, tmp_path):
    ended = ranks.run(told_by_a_rank_between, 3, str(tmp_path))
    assert ended.codes == [1, 1, 1], ended.errors
    assert "RunError: rank 2 was lost" in ended.errors[0]
    for rank in (1, 2):
        assert "RankError: rank 2 failed: no memory" in ended.errors[rank]


@thorough
def test_a_broken_collective_is_recognised_behind_other_words(ranks, tmp_path):
    ended = ranks.run(in_other_words, 3, str(tmp_path))
    assert ended.codes == [1, 1, -9], ended.errors
    for rank in (0, 1):
        assert "RunError: rank 2 was lost (the exchange broke off)" in ended.errors[rank]


def test_a_rank_without_memory_blames_no_other(ranks, tmp_path):
    ended = ranks.run(out_of_memory, 2, str(tmp_path), grace_s=0.5)
    assert ended.codes == [1, -9]
    assert ended.errors[0].rstrip().endswith("OutOfMemoryError: no memory left")


def test_ranks_that_nothing_breaks_for_end_when_rank_0_is_gone_with_the_store(ranks, tmp_path):
    ended = ranks.run(first_is_killed, 2, str(tmp_path), grace_s=30)
    assert ended.codes == [-9, 1], ended.errors
    assert re.search("rank 0 .*was lost", ended.errors[1]), ended.errors[1]


def test_the_store_lives_until_all_ranks_have_ended(ranks, tmp_path):
    ended = ranks.run(first_is_early, 2, str(tmp_path))
    assert ended.codes == [0, 0], ended.errors
