"""Decode in tiles: the bits of diffusers' tiling on any number of ranks, within the memory said before."""

import json
from dataclasses import replace

import pytest
import torch

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.distributed.world import World
from reelweave.train.memory.live_memory import LiveMemory
from reelweave.train.models.encoders.decode_tiles import TileAxis, TileLayout
from reelweave.train.models.encoders.tokenizer import PatchTransform
from reelweave.train.sampling.decode.assignment import assign, efficiency
from reelweave.train.sampling.decode.budget import peak_bytes, plan_decode
from reelweave.train.sampling.decode.fitting import FittingDecoder
from reelweave.train.sampling.decode.kept_latents import kept_latents, load_latents
from reelweave.train.sampling.decode.offload import on_the_host
from reelweave.train.sampling.decode.seams import seam_score
from reelweave.train.sampling.decode.tiled import TiledDecoder
from tests.thorough import beyond, nightly, thorough
from tests.train.clips import clip
from tests.train.models.diffusers_vaes import tokenizer
from tests.train.sampling.decode.decode_cases import CASES, cut_small, latents_of
from tests.train.sampling.decode.decode_ranks import SHARED, decode

ALONE = World(0, 1, torch.device("cpu"))


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(folder, family, **settings):
    made = tokenizer(folder, family, tiling=True, **settings)
    cut_small(made.vae)
    return made


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=nightly)])
@pytest.mark.parametrize("family", beyond(2, [family for family in CASES if family != "cosmos"]))
def test_tiles_are_diffusers_own_to_the_bit(tmp_path, family, dtype):
    made = small(tmp_path, family, dtype=dtype)
    for size in CASES[family] if dtype == "float32" else CASES[family][-1:]:
        x = latents_of(made, size)
        assert made.decode_layout().is_whole(size) == (size == (2, 2, 4))
        theirs = torch.cat([made.decode(each) for each in x.split(1)])
        assert torch.equal(TiledDecoder(made, ALONE)(x), theirs)


def test_every_number_of_ranks_decodes_the_same_bits(ranks, tmp_path):
    for family in SHARED:
        made = small(tmp_path / family, family)
        (tmp_path / f"{family}.json").write_text(made.config.model_dump_json())
    ended = ranks.run(decode, 4, str(tmp_path))
    assert ended.codes == [0] * 4, ended.errors
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(4)]
    errors = [each.pop("error") for each in found]
    assert all(value for each in found for value in each.values()), found
    assert {name.rpartition(" on ")[2] for each in found for name in each} == {
        "1 of 1", "1 of 2", "2 of 2", "2 of 3", "3 of 3", "2 of 4", "4 of 4"
    }  # fmt: skip
    assert "take smaller tiles" in errors[2]
    assert all("rank 2 of 4 failed to decode its tiles: no memory" in errors[rank] for rank in (0, 1, 3))


WAN = TileAxis(32, 24, 192, 64)
COGVIDEOX = TileLayout((4, 8, 8), None, TileAxis(30, 25, 200, 40), TileAxis(45, 36, 288, 72))


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (TileLayout((4, 8, 8), None, WAN, WAN), (21, 60, 104)),
        (TileLayout((4, 8, 8), None, WAN, WAN), (21, 90, 160)),
        (TileLayout((4, 8, 8), TileAxis(4, 3, 12, 4), WAN, WAN), (33, 90, 160)),
        (COGVIDEOX, (13, 60, 90)),
    ],
)
def test_four_ranks_wait_for_each_other_a_tenth_of_the_time_at_most(layout, size):
    costs = [tile.size[0] * tile.size[1] * tile.size[2] for tile in layout.tiles(size)]
    owners = assign(costs, 4)
    assert efficiency(costs, owners, 4) >= 0.9
    assert owners[costs.index(max(costs))] == 0


def test_ranks_without_a_tile_are_counted_as_idle():
    assert assign([5], 3) == [0]
    assert efficiency([5], [0], 2) == 0.5


@pytest.mark.parametrize("step", beyond(1, [(8, 8), None]))
def test_the_peak_is_said_before(tmp_path, step):
    made, size = tokenizer(tmp_path, "wan"), (2, 10, 16)
    layout = made.decode_layout(step)
    said = peak_bytes(made, layout, size)
    with LiveMemory() as memory:
        TiledDecoder(made, ALONE, layout)(latents_of(made, size, videos=1))
    assert said == pytest.approx(memory.peak, rel=0.02)


@thorough
def test_tiles_keep_a_budget(tmp_path):
    made, size = tokenizer(tmp_path, "wan"), (1, 40, 16)
    whole = plan_decode(made, size, None, ranks=2)
    assert (whole.tiles, whole.efficiency) == (1, 0.5)
    budget = int(whole.peak_bytes * 0.9)
    plan = plan_decode(made, size, budget, ranks=2)
    assert plan.peak_bytes <= budget
    assert plan.tiles > 1
    assert plan.efficiency > 0.8
    assert str(plan).startswith(f"{plan.tiles} tiles a video, 0.0")
    with pytest.raises(UsageError, match="make fewer videos at once, or shorter or smaller ones"):
        plan_decode(made, size, 1000)


class Noted(torch.nn.Linear):
    """A model that notes where it is moved; a device without values stands for a GPU."""

    def to(self, device):
        self.moves.append(str(device))
        return self.to_empty(device=device)


def test_a_model_leaves_the_device_where_the_decode_does_not_fit_beside_it(tmp_path):
    made, size = tokenizer(tmp_path, "wan"), (1, 40, 16)
    decoder = FittingDecoder(TiledDecoder(made, ALONE))
    peak = peak_bytes(made, made.decode_layout(), size)
    assert decoder.fits(size, None)
    assert decoder.fits(size, peak)
    assert not decoder.fits(size, peak - 1)
    # Within a budget the tiles are smaller, and need less beside the model.
    smaller = FittingDecoder(TiledDecoder(made, ALONE), budget_bytes=int(peak * 0.9))
    assert smaller.fits(size, peak - 1)

    gpu = torch.device("meta")
    models = [Noted(3, 4, device=gpu) for _ in range(2)]
    for model in models:
        model.moves = []
    with pytest.raises(RunError, match="no memory"), on_the_host(models, gpu):
        assert all(model.weight.device.type == "cpu" for model in models)
        raise RunError("no memory")
    assert all(model.weight.device == gpu and model.moves == ["cpu", "meta"] for model in models)
    for moved, device in (([], gpu), (models, torch.device("cpu"))):
        with on_the_host(moved, device):
            assert all(model.weight.device == gpu for model in models)


def test_our_tokenizer_is_cut_exactly_and_without_seams():
    made = PatchTransform(PatchTransformConfig(frames=2, height=2, width=2))
    x = made.encode(clip(1, Bucket(5, 32, 48))[None])
    layout = made.decode_layout((4, 5))
    assert len(layout.tiles((3, 16, 24))) == 4 * 5
    tiled = TiledDecoder(made, ALONE, layout)(x)
    torch.testing.assert_close(tiled, made.decode(x), rtol=1e-5, atol=1e-6)
    assert seam_score(tiled, layout) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("family", ["wan", "hunyuan"])
def test_overlaps_hide_seams(tmp_path, family):
    made, size = tokenizer(tmp_path, family), (1, 16, 24)
    rows, columns = torch.linspace(0, 4, 16)[:, None], torch.linspace(0, 6, 24)
    x = (torch.sin(rows) * torch.cos(columns)).expand(1, made.channels, *size).contiguous()
    soft = made.decode_layout((8, 8))
    hard = replace(soft, rows=soft.rows._replace(blend=0), columns=soft.columns._replace(blend=0))
    found, seams = (seam_score(TiledDecoder(made, ALONE, layout)(x), layout) for layout in (soft, hard))
    assert found < 1.3
    assert seams > 2 * found


def test_a_failed_decode_keeps_the_latents(tmp_path):
    x, path = torch.randn(1, 4, 2, 3, 5), tmp_path / "kept" / "car.safetensors"
    said = pytest.raises(RunError, match=r"no memory; the sampled latents are kept in .*car\.safetensors")
    with said, kept_latents(path, x, {"seed": "3"}):
        raise RunError("no memory")
    latents, described = load_latents(path)
    assert torch.equal(latents, x)
    assert described == {"seed": "3"}
    (tmp_path / "by umask").touch()
    assert path.stat().st_mode == (tmp_path / "by umask").stat().st_mode
    with kept_latents(path, x, {}):
        assert path.exists()
    assert not path.exists()
    path.write_bytes(b"damaged")
    with pytest.raises(UsageError, match="holds no sampled latents"):
        load_latents(path)
