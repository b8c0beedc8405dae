"""Latent Parallelism on four gloo processes, against one process that predicts the same parts in turn."""

import json

import pytest

from tests.thorough import but, chosen
from tests.train.sampling.latent_parallel import lp_ranks
from tests.train.sampling.latent_parallel.lp_ranks import AIDS_OFF, BLENDS, COMBINED, MODES


@pytest.fixture(scope="module")
def findings(tmp_path_factory, ranks, request):
    """What each rank found; the processes start once for all cases."""
    out = tmp_path_factory.mktemp("ranks")
    ended = ranks.run(lp_ranks.compute, 4, str(out), chosen(request, "blend"))
    assert ended.codes == [0] * 4, ended.errors
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(4)]


ALWAYS = ("balanced, overlap 0.4",)
OFTEN = ("unite, overlap 0.0",)


@pytest.mark.parametrize("blend", but(ALWAYS, BLENDS, OFTEN))
def test_each_mode_blends_what_one_process_blends_and_is_exact_where_tokens_are_apart(findings, blend):
    for rank in findings:
        found = rank["modes"]
        assert found[f"{blend}: as in one process"] < 1e-10
        if BLENDS[blend]["overlap"]:
            assert found[f"{blend}: exact without attention"] < 1e-10
        assert found[f"{blend}: not the exact sampler"] > 1e-4
        assert found[f"{blend}: bits"] == findings[0]["modes"][f"{blend}: bits"]


@pytest.mark.parametrize("mode", MODES)
def test_few_steps_and_fewer_patches_than_groups(findings, mode):
    for rank in findings:
        for case in ("1 steps", "2 steps", "few patches"):
            finite, bits = rank["steps"][f"{mode}, {case}"]
            assert finite
            assert bits == findings[0]["steps"][f"{mode}, {case}"][1]


def test_unites_first_step_is_the_exact_samplers(findings):
    assert all(rank["steps"]["unite's first step"] < 1e-10 for rank in findings)


def test_rotary_attention_does_not_see_where_a_part_begins(findings):
    assert all(rank["steps"]["positions"] < 1e-5 for rank in findings)


@pytest.mark.parametrize("name", AIDS_OFF)
def test_an_aid_over_ranks_is_that_of_the_whole_video(findings, name):
    for rank in findings:
        assert rank["aids"][f"{name} changes the video"] > 1e-4
        # Smoothing within a part lacks the neighbours of its border rows, whose weights are small.
        bound = 0.5 * rank["aids"][f"{name} changes the video"] if name == "delta_smoothing" else 1e-10
        assert rank["aids"][f"{name} over ranks"] < bound


def test_one_group_is_the_plain_sampler_to_the_bit(findings):
    assert all(rank["aids"]["one group: bits"] for rank in findings)


def test_unites_aids_leave_ranks_with_the_same_latents(findings):
    assert len({rank["aids"]["unite: bits"] for rank in findings}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_ranks_send_the_bytes_that_are_foretold(findings, mode):
    for rank in findings:
        sent, foretold = rank["sent"][mode]
        assert sent == foretold > 0


def test_latents_that_differ_in_one_bit_end_all_ranks_in_words(findings):
    for rank in findings:
        assert "differ in latents at point 3 of 4 (other bits than rank 0: rank 2" in rank["differing"]
        assert "same checkpoint, prompt and seed" in rank["differing"]


@pytest.mark.parametrize("inner", COMBINED)
def test_groups_run_exact_methods_of_their_own(findings, inner):
    """Guidance, a ring or Ulysses over two ranks, in each of two groups that divide the latents."""
    for rank in findings:
        for mode, (error, bits) in rank[inner].items():
            assert error < 1e-10
            assert bits == findings[0][inner][mode][1]
