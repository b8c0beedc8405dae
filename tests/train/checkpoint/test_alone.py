"""One training run at a time in a folder: rank 0 holds the lease, and every rank learns what came of it."""

from pathlib import Path

import pytest

from reelweave.loader.errors import RunError
from reelweave.loader.storage import hold_lease, open_storage
from reelweave.loader.storage.leases.holder import read_holder
from reelweave.train.distributed.run_lease import alone
from reelweave.train.distributed.world import join


def member(out: str, held: bool) -> None:
    """A rank of two."""
    places = [open_storage(out), open_storage(f"{out}/apart")]
    with join("cpu") as world:
        if held:
            with pytest.raises(RunError, match="another run, since"), alone(world, places, "reelweave train"):
                pass
            return
        with alone(world, places, "reelweave train") as mine:
            for place in mine:
                place.write(f"of rank {world.rank}", b"")
            world.barrier()
            (Path(out) / "apart/.reelweave-lease").unlink(missing_ok=True)  # as if taken over
            world.barrier()
            with pytest.raises(RunError, match="lost its lease"):
                mine[1].create("state.json", b"")
            mine[0].create(f"still mine {world.rank}", b"")
            world.barrier()  # rank 0 gives the lease up when it leaves


def test_every_rank_writes_and_every_rank_finds_out(ranks, tmp_path: Path):
    ended = ranks.run(member, 2, str(tmp_path / "run"), False)
    assert ended.codes == [0, 0], ended.errors
    assert read_holder(open_storage(tmp_path / "run")) is None


def test_a_second_run_ends_on_every_rank_in_words(ranks, tmp_path: Path):
    with hold_lease(open_storage(tmp_path / "run/apart"), "another run"):
        ended = ranks.run(member, 2, str(tmp_path / "run"), True)
    assert ended.codes == [0, 0], ended.errors
