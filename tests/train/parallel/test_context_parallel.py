"""Sequences cut over ranks: outputs, gradients, bytes and hops of gloo processes against one process."""

import json
from itertools import chain

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.parallel.context.partition import Partition
from reelweave.train.parallel.context.ulysses import Ulysses
from tests.thorough import but, chosen
from tests.train.parallel.context_ranks import MESHES, cases, compute

TOLERANCES = {"dense_float32": 1e-5, "dense_bfloat16": 1e-2}


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request) -> list[dict[str, dict[str, float]]]:
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    ended = ranks.run(compute, 4, str(out), chosen(request, "mesh", "case"))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


ALL = [(mesh, case) for mesh, case, _ in cases()]
USUAL = ("dense", "dense_float32", "uneven", "joint", "packed", "gathered", "traffic")
# Of what every mesh computes, three ranks that nothing divides by, and both kinds of groups.
ALWAYS = [
    (mesh, case)
    for mesh, case in ALL
    if case not in USUAL or mesh in ("ring 2 x ulysses 2", "ring 3" if case in USUAL[::2] else "ulysses 3")
]


@pytest.mark.parametrize(("mesh", "case"), but(ALWAYS, ALL), ids=lambda name: name.replace(" ", "-"))
def test_each_rank_has_its_part_of_what_one_process_computes(findings, mesh, case):
    for rank in chain(*MESHES[mesh]):
        errors = findings[rank][f"{mesh}: {case}"]
        wrong = {what: error for what, error in errors.items() if not error <= TOLERANCES.get(case, 1e-10)}
        assert errors, rank
        assert not wrong, rank


@pytest.mark.parametrize(("rank", "way"), [(0, "ring"), (2, "ulysses"), (3, "gather")])
def test_a_rank_that_is_lost_raises_on_those_that_wait_for_it(findings, rank, way):
    assert findings[rank][f"a lost rank in {way}"]["seconds"] < 30


def test_heads_that_do_not_divide_are_refused_before_anything_is_sent():
    x = torch.zeros(1, 12, 2, 8)
    with pytest.raises(UsageError, match=r"12 heads do not divide over 5 ranks.* 1, 2, 3, 4, 6, 12,"):
        Ulysses(None, Partition.even(10, 5), None).attend(x, x, x)
