"""Sampling in every exact layout of 1 to 4 ranks: the predictions of gloo processes against one process.

Most layouts of as many ranks take turns at the lengths; `tests.bench.exact_layouts` runs all of them at all lengths.
"""

import json

import pytest

from tests.thorough import but, chosen
from tests.train.sampling.context.context_ranks import (
    LAYOUTS,
    MEMBERS,
    MODELS,
    SLICED,
    VIDEOS,
    WINDOWED,
    compute,
    lengths,
    publish_models,
)

CASES = [(layout, name) for layout in LAYOUTS for name in MODELS]
GROUPED = [layout for layout in LAYOUTS if "ring" in layout or "ulysses" in layout]


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request):
    """What each rank found, by case; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    publish_models(out)
    ended = ranks.run(
        compute,
        4,
        str(out),
        chosen(request, "layout", "name"),
        chosen(request, "layout", "windowed"),
        chosen(request, "video"),
    )
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


def check(findings, layout, name, every=False):
    """Judges what the ranks of a layout found with a model; returns the errors by length."""
    found = [findings[rank][f"{layout}, {name}"] for rank in MEMBERS[layout]]
    errors = {length: error for each in found for length, error in each["errors"].items()}
    wrong = {
        length: error for length, error in errors.items() if not error <= (1e-5 if "32" in length else 1e-10)
    }
    assert wrong == {}
    assert len({each["hash"] for each in found}) == 1
    # Fewer tokens than ranks are refused by all, but for models in which a rank may be without any video token.
    sharing = len(LAYOUTS[layout][0]) * len(LAYOUTS[layout][0][0])
    asked = list(lengths(layout, name, every))
    few = [n for n, _ in asked if n < sharing and name not in ("mmdit", "st_dit", *SLICED)]
    for each in found:
        assert [tokens for tokens, _ in each["refused"]] == few
        assert all("use fewer ranks" in message for _, message in each["refused"])
    assert len(errors) + len(few) == len(asked)
    return errors


# Strides: the first two meet half of the layouts, and every layout and every model.
@pytest.mark.parametrize(("layout", "name"), but(CASES[::22], CASES, {*CASES[::11], *CASES[::4]}))
def test_a_layout_predicts_what_one_process_does_on_all_its_ranks(findings, layout, name):
    check(findings, layout, name)


def test_turns_leave_out_no_length_of_a_model_nor_of_a_layout():
    for ranks in range(1, 5):
        alike = [layout for layout in LAYOUTS if len(MEMBERS[layout]) == ranks]
        every = set(range(1, 4 * ranks + 1))

        def met(cases):
            return {n for case in cases for n, dtype in lengths(*case) if "64" in str(dtype)}

        for name, config in MODELS.items():
            short = isinstance(config, dict) and ranks < 4
            found = met((layout, name) for layout in alike)
            assert found == ({n for n in every if n <= 2 * ranks} if short else every)
        for layout in alike:
            assert met((layout, name) for name in MODELS) == every


WINDOWS = [(layout, name) for layout in GROUPED for name in MODELS if name in WINDOWED]


@pytest.mark.parametrize(("layout", "windowed"), but(WINDOWS[::5], WINDOWS))
def test_a_window_keeps_its_positions_in_the_whole_video(findings, layout, windowed):
    for rank in MEMBERS[layout]:
        assert findings[rank][f"{layout}, {windowed}, window"] <= 1e-10


def test_heads_that_do_not_divide_are_refused_with_their_divisors(findings):
    for rank in findings:
        assert len(rank["refused"]) == 3
        for said in rank["refused"]:
            assert "ulysses=4 must divide the model's 2 heads: take 1, 2;" in said


SEEDED = [f"{name}, {degrees}" for name, grids in VIDEOS.items() for degrees in grids]


@pytest.mark.parametrize("video", but(SEEDED[::3], SEEDED))
def test_a_seed_gives_one_video_in_every_exact_layout(findings, video):
    found = [rank["videos"][video] for rank in findings]
    for each in found:
        assert each["error"] <= 1e-10
        assert each["same pixels"] == each["first"]
        assert each["bytes"] > 0
    assert any(each["first"] for each in found)
