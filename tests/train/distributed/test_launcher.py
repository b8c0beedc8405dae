"""Ranks end by themselves when torchrun is killed, and go on when a shell that started them ends."""

import pytest

from tests.thorough import but, thorough
from tests.train.distributed.launchers import STEPS, killed_torchrun, shell_that_ends
from tests.train.saved import losses


@pytest.mark.parametrize(
    ("size", "shell"),
    but([], [(2, False), (1, True), (1, False)], [(2, False)]),
    ids=["two", "below a shell", "one"],
)
def test_ranks_of_a_killed_torchrun_save_and_end(ranks, tmp_path, size, shell):
    ended = ranks.run(killed_torchrun, 1, str(tmp_path), size, shell)
    assert ended.codes == [0], ended.errors
    assert float((tmp_path / "seconds").read_text()) < 60
    said = ended.errors[0]
    # A rank whose peer has stopped already hears no more of it.
    assert 1 <= said.count("torchrun is gone, so that this rank ends, too") <= size, said
    assert "the same command goes on from there" in said
    for rank in range(size):
        steps, stopped = (tmp_path / f"{rank}.ended").read_text().split()
        assert stopped == "True"
        assert len(losses(tmp_path / "run")) == int(steps) < STEPS


@thorough
def test_ranks_that_a_shell_started_go_on_without_it(ranks, tmp_path):
    ended = ranks.run(shell_that_ends, 1, str(tmp_path), 30)
    assert ended.codes == [0], ended.errors
    assert [(tmp_path / f"{rank}.ended").read_text() for rank in (0, 1)] == ["30 False"] * 2
