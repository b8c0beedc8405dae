"""Sampling with sequences cut over ranks: the predictions of gloo processes against one process."""

import json
from itertools import chain

import pytest

from tests.train.sampling.context_ranks import (
    GRIDS,
    MESHES,
    MODELS,
    WINDOWED,
    compute,
    lengths,
    publish_models,
)

CASES = [(mesh, name) for mesh in MESHES for name in MODELS]


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    publish_models(out)
    ended = ranks.run(compute, 4, str(out))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize(("mesh", "name"), CASES)
def test_every_length_gives_what_one_process_predicts_on_all_ranks(findings, mesh, name):
    own = list(chain(*MESHES[mesh]))
    found = [findings[rank][f"{mesh}, {name}"] for rank in own]
    errors = {length: error for each in found for length, error in each["errors"].items()}
    wrong = {
        length: error for length, error in errors.items() if not error <= (1e-5 if "32" in length else 1e-10)
    }
    assert wrong == {}
    assert len({each["hash"] for each in found}) == 1
    # Fewer tokens than ranks are refused by all, but for models in which a rank may be without any video token.
    refused = {tuple(tokens for tokens, _ in each["refused"]) for each in found}
    assert refused == {() if name in ("mmdit", "st_dit") else tuple(range(1, len(own)))}
    assert len(errors) + len(*refused) == len(list(lengths(len(own), name)))
    for _, message in found[0]["refused"]:
        assert "use fewer ranks" in message


@pytest.mark.parametrize(("mesh", "name"), [case for case in CASES if case[1] in WINDOWED])
def test_a_window_keeps_its_positions_in_the_whole_video(findings, mesh, name):
    for rank in chain(*MESHES[mesh]):
        assert findings[rank][f"{mesh}, {name}, window"] <= 1e-10


@pytest.mark.parametrize("name", ["dit", "cosmos"])
def test_heads_that_do_not_divide_are_refused_with_their_divisors(findings, name):
    for rank in findings:
        assert "ulysses=4 must divide the model's 2 heads: take 1, 2;" in rank[f"4 ranks, 2 heads, {name}"]


@pytest.mark.parametrize("degrees", [str(degrees) for degrees in GRIDS])
def test_a_seed_gives_one_video_in_every_exact_layout(findings, degrees):
    found = [rank["videos"][degrees] for rank in findings]
    for each in found:
        assert each["error"] <= 1e-10
        assert each["same pixels"] == each["first"]
        assert each["bytes"] > 0
    assert any(each["first"] for each in found)
