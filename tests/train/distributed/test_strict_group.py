"""What the process group of tests refuses: faults that gloo does not mind, planted one by one."""

import pytest

from tests.thorough import but
from tests.train.distributed import strict_faults

REFUSED = {
    "host_tensor": "on the host since tests/train/distributed/strict_faults.py",
    "strided": "is not contiguous, its strides are (1, 4)",
    "unequal": "size differ",
    "unequal_splits": "splits differ",
    "dtypes": "dtype differ",
    "order": "call, ",
    "order_of_groups": "group differ",
    "lone_send": "rank 1 has left the group",
    "opposite_sends": "wait for each other",
    "unwaited": "nobody waited for its result",
    "read_early": "read before wait: nan",
    "written_early": "was written before wait",
    "objects": "broadcast_object_list in a training step",
    "first_use": "the first one, in a training step",
    "new_group": "a new group of ranks 0, 1 in a training step",
    "first_pair": "the first one, in a training step",
    "barrier": "without device_ids NCCL guesses the GPU",
}


def test_every_planted_fault_has_its_words():
    assert REFUSED.keys() == strict_faults.FAULTS.keys()


def test_what_nccl_takes_is_taken(ranks):
    ended = ranks.run(strict_faults.run, 2, "right", strict=True)
    assert ended.codes == [0, 0], ended.errors


ALWAYS = ("first_use", "host_tensor", "opposite_sends", "order_of_groups", "unequal_splits", "unwaited")


@pytest.mark.parametrize("name", but(ALWAYS, strict_faults.FAULTS))
def test_a_planted_fault_is_refused_with_rank_group_call_and_line(name, ranks):
    ended = ranks.run(strict_faults.run, 2, name, strict=True)
    said = "\n".join(ended.errors)
    assert REFUSED[name] in said, said
    assert all(ended.codes) or name == "lone_send", (ended.codes, said)
