"""Caches of blocks: what a hit computes, who decides, and what is kept apart."""

import json
from pathlib import Path

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.distributed.world import World, join
from reelweave.train.models.attention.patches import join as join_patches
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.dit import tokens
from reelweave.train.sampling.cache.block_cache import BlockCache
from reelweave.train.sampling.cache.config import BlockCacheConfig
from tests.thorough import beyond
from tests.train.diffusers_models import inputs_of, model_of
from tests.train.parallel.context_models import TINY

ALONE = World(0, 1, torch.device("cpu"))
KINDS = {
    "dit": DiTConfig(**TINY | {"layers": 3}),
    "st_dit": STDiTConfig(**TINY | {"layers": 3}),
    "mmdit": MMDiTConfig(**TINY | {"layers": 3}),
}


def awake(kind):
    torch.manual_seed(0)
    model = build_denoiser(KINDS[kind], 4, 8).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def asked(seed, moved=0.0, text=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 4, 2, 4, 6, generator=generator, dtype=torch.float64)
    x = x + moved * torch.randn(x.shape, generator=torch.Generator().manual_seed(77), dtype=torch.float64)
    context = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(100 + text), dtype=torch.float64)
    return x, torch.full((1,), 0.5, dtype=torch.float64), context, torch.ones(1, 3, dtype=torch.bool)


@torch.no_grad()
def through(cache, model, inputs, branch=0):
    with cache.evaluation(branch):
        return model(*inputs)


@pytest.mark.parametrize("watched", ["first_block", "teacache"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_threshold_of_zero_changes_no_bit(kind, watched):
    model = awake(kind)
    cache = BlockCache(model, BlockCacheConfig(kind=watched, threshold=0), ALONE)
    for moved in (0, 0.1, 0.1, 0.2):
        inputs = asked(1, moved)
        with torch.no_grad():
            expected = model(*inputs)
        assert torch.equal(through(cache, model, inputs), expected)
    assert (cache.hits, cache.evaluations) == (0, 4)
    assert "forward" not in model.repeated()[0].__dict__


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_adds_what_the_later_blocks_added_before(kind):
    model = awake(kind)
    cache = BlockCache(model, BlockCacheConfig(threshold=10), ALONE)
    seen = []
    first, last = model.repeated()[0], model.repeated()[-1]

    def note(_module, _inputs, output):
        seen.append(output[0] if isinstance(output, tuple) else output)

    before, after = asked(1), asked(1, 0.3)
    hooks = [first.register_forward_hook(note), last.register_forward_hook(note)]
    with torch.no_grad():
        model(*before)
        model(*after)
    for hook in hooks:
        hook.remove()
    added = seen[1] - seen[0]
    # What the head makes of the first block's output, with what was added at the evaluation before.
    condition = model.embed_time(_features(after[1]))
    with torch.no_grad():
        values = model.leave((seen[2] + added, None), condition, None)
    expected = join_patches(values.reshape(1, *model.grid((2, 4, 6)), 4, -1), model.patch)
    through(cache, model, before)
    found = through(cache, model, after)
    assert cache.hits == 1
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert tokens(after[0], model.patch).shape == values.shape


def _features(t_B):
    from reelweave.train.measure.flops import TIME_WIDTH
    from reelweave.train.models.attention.positions import time_features

    return time_features(t_B, TIME_WIDTH)


def test_teacache_skips_the_first_block_too_until_small_changes_add_up():
    model = awake("dit")
    cache = BlockCache(model, BlockCacheConfig(kind="teacache", threshold=0.05), ALONE)
    ran = []
    model.repeated()[0].mlp.register_forward_hook(lambda *_: ran.append(1))
    hits = []
    for number in range(8):
        before = cache.hits
        through(cache, model, asked(1, 0.01 * number))
        hits.append(cache.hits - before)
    assert hits[0] == 0
    assert hits[1] == 1
    assert 0 in hits[2:], "changes that add up are computed again"
    assert len(ran) == hits.count(0)


def test_branches_videos_and_shapes_reuse_nothing_of_each_other():
    model = awake("dit")
    cache = BlockCache(model, BlockCacheConfig(threshold=10), ALONE)
    for branch in (0, 1):
        through(cache, model, asked(1, text=branch), branch)
    assert cache.hits == 0
    for branch in (0, 1):
        through(cache, model, asked(1, text=branch), branch)
    assert cache.hits == 2
    # The cache of a branch is that of its own text: the whole model again, since nothing moved.
    with torch.no_grad():
        torch.testing.assert_close(through(cache, model, asked(1, text=1), 1), model(*asked(1, text=1)))
    cache.clear()
    through(cache, model, asked(1), 0)
    assert cache.hits == 3
    x, *others = asked(1)
    through(cache, model, (x[:, :, :1], *others), 0)
    assert cache.hits == 3


def test_what_is_not_a_number_is_computed():
    model = awake("dit")
    cache = BlockCache(model, BlockCacheConfig(threshold=10), ALONE)
    x, *others = asked(1)
    through(cache, model, (x, *others))
    assert not through(cache, model, (x * torch.nan, *others)).isfinite().any()
    assert cache.hits == 0


@pytest.mark.parametrize("family", beyond(1, ["hunyuan", "wan", "cogvideox", "cosmos"]))
def test_published_models_run_through_the_cache(family):
    torch.manual_seed(0)
    theirs = model_of(family)

    class Blocks(torch.nn.Module):
        def repeated(self):
            names = ("blocks", "transformer_blocks", "single_transformer_blocks")
            return [block for name in names for block in getattr(theirs, name, ())]

    inputs = inputs_of(family)
    with torch.no_grad():
        expected = theirs(**inputs, return_dict=False)[0]
        cache = BlockCache(Blocks(), BlockCacheConfig(threshold=10), ALONE)
        for _ in range(2):
            with cache.evaluation(0):
                found = theirs(**inputs, return_dict=False)[0]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert cache.hits == 1


def test_changes_of_a_run_that_skips_nothing_give_the_polynomial():
    model = awake("dit")
    cache = BlockCache(model, BlockCacheConfig(kind="teacache", threshold=0), ALONE)
    for moved in (0, 0, 0.1, 0.3):
        through(cache, model, asked(1, moved))
    still, *moving = cache.changes
    assert still == (0, 0)
    assert all(added > 0 for pair in moving for added in pair)
    assert moving[0][0] < moving[1][0]
    with pytest.raises(UsageError, match="more steps"):
        cache.fit()
    cache.changes = [(x, 3 * x**2 + 0.5 * x + 0.01) for x in (0.1, 0.2, 0.4, 0.5)]
    assert cache.fit(2) == pytest.approx((3, 0.5, 0.01))


def test_models_that_cannot_be_cached_are_refused():
    one = build_denoiser(DiTConfig(**TINY | {"layers": 1}), 4, 8)
    with pytest.raises(UsageError, match="has one"):
        BlockCache(one, BlockCacheConfig(), ALONE)


def agree(out):
    """Two ranks with tokens that moved much and little: one would compute, the other skip."""
    with join("cpu") as world:
        model = awake("dit")
        config = BlockCacheConfig(threshold=0.05)
        cache = BlockCache(model, config, world)
        hits = []
        for number, moved in enumerate((0, 0.002, 0.3, 0.3, 0.5)):
            before = cache.hits
            through(cache, model, asked(1 + world.rank, moved if (world.rank + number) % 2 else moved / 100))
            hits.append(cache.hits - before)
        Path(out, f"{world.rank}.json").write_text(json.dumps(hits))


def test_ranks_with_different_tokens_decide_alike(ranks, tmp_path):
    ended = ranks.run(agree, 2, str(tmp_path))
    assert ended.codes == [0, 0], ended.errors
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first[0] == 0
    assert {0, 1} == set(first)
