"""Others wait for what the first rank does alone in no collective, and all groups have the run's timeout."""

from tests.train.distributed import first_ranks


def test_ranks_wait_for_the_first_one_in_no_collective(ranks):
    ended = ranks.run(first_ranks.waiting, 3)
    assert ended.codes == [1] * 3
    for said in ended.errors:
        assert said.splitlines()[-1].endswith("UsageError: that file is no video"), said


def test_ranks_that_wait_for_a_first_one_that_failed_name_it(ranks):
    ended = ranks.run(first_ranks.failing, 2)
    assert ended.codes == [1, 1]
    assert "ValueError: no words" in ended.errors[0]
    assert "RunError: rank 0 was lost" in ended.errors[1], ended.errors[1]


def test_every_group_has_the_timeout_of_its_run(ranks):
    ended = ranks.run(first_ranks.timeouts, 4)
    assert ended.codes == [0] * 4, ended.errors
