"""Models on sequences cut over ranks: losses, all gradients and collectives of gloo processes against one process."""

import json
from itertools import chain

import pytest

from tests.thorough import but, chosen
from tests.train.parallel import context_models
from tests.train.parallel.context_models import MESHES, cases

LAYERS = 2


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    context_models.publish_models(out)
    ended = ranks.run(context_models.compute, 4, str(out), chosen(request, "case"))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


ALL = [(case.mesh, str(case)) for case in cases()] + [(mesh, f"{mesh}, gathered") for mesh in MESHES]
MOST = "ring 2 x ulysses 2"
"""The mesh with both kinds of groups."""
# Those whose exchanges are counted, and a fourteenth of the others.
ALWAYS = [case for n, case in enumerate(ALL) if n % 14 == 0 or (case[0] == MOST and "st_dit" in case[1])]
OFTEN = [case for n, case in enumerate(ALL) if n % 7 in (0, 2, 4) or "st_dit" in case[1]]


@pytest.mark.parametrize(("mesh", "case"), but(ALWAYS, ALL, OFTEN))
def test_each_rank_has_its_part_of_what_one_process_computes(findings, mesh, case):
    for rank in chain(*MESHES[mesh]):
        errors = findings[rank][case]["errors"]
        wrong = {name: error for name, error in errors.items() if not error <= 1e-10}
        assert errors
        assert wrong == {}, rank


@pytest.mark.parametrize("mesh", but((MOST,), MESHES))
@pytest.mark.parametrize("what", ["video", "pack"])
def test_a_layer_of_an_st_dit_exchanges_tokens_twice_each_way(findings, mesh, what):
    rings, ulysses = len(MESHES[mesh]), len(MESHES[mesh][0])
    for rank in chain(*MESHES[mesh]):
        for events in findings[rank][f"{mesh}, st_dit, {what}"]["events"]:
            events.pop("attend", 0)
            # The loss of a microbatch is added up over both groups, by the forward alone.
            assert events.pop("c10d::allreduce_", 2) == 2
            assert events == {"exchange": 2 * LAYERS}
        for events, hops in zip(
            findings[rank][f"{mesh}, st_dit, full, {what}"]["events"], (1, 2), strict=True
        ):
            assert events["exchange"] == 2 * LAYERS + 4 * LAYERS * (ulysses > 1)
            assert events.get("hop", 0) == hops * LAYERS * (rings - 1)


@pytest.mark.parametrize("mesh", but((MOST,), MESHES))
def test_these_exchanges_send_the_bytes_that_are_foretold(findings, mesh):
    for rank in chain(*MESHES[mesh]):
        expected = findings[rank][f"{mesh}, foretold"]
        assert findings[rank][f"{mesh}, st_dit, video"]["bytes"] == [expected] * 2


def test_ranks_in_another_order_than_that_of_the_parts_are_refused_by_all(findings):
    assert all(rank["another order"] for rank in findings)
