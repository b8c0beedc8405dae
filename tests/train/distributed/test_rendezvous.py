import threading

import pytest
from torch.distributed import HashStore

from reelweave.loader.errors import RunError
from reelweave.train.distributed.rendezvous import meet


def met(store, ranks, size):
    """The stores of ranks that come at once."""
    found = {}
    threads = [
        threading.Thread(target=lambda r=r: found.update({r: meet(store, r, size)}), daemon=True)
        for r in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_no_attempt_sees_what_one_before_it_has_left():
    store = HashStore()
    first = met(store, range(3), 3)
    first[0].set("address of 0", "old")
    assert first[2].get("address of 0") == b"old"
    # An attempt of which two ranks died before they had met the third.
    store.set("here/1", "token of a dead one")
    second = met(store, range(3), 3)
    assert not any(one.check(["address of 0"]) for one in second.values())
    second[1].set("address of 1", "new")
    assert second[0].get("address of 1") == b"new"


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(RunError, match="rank 1, 2 did not come"):
        meet(HashStore(), 0, 3, patience_s=0.1)
