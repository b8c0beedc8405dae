"""Windows of latents: a part of a video is predicted as in the whole video with attention to nothing else."""

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiffusersConfig, DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.patches import join
from reelweave.train.models.attention.positions import Window
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.dit import WHOLE_SAMPLES, TokenLayout, tokens
from reelweave.train.models.mmdit import MMDiT
from reelweave.train.models.st_dit import STDiT
from reelweave.train.sampling.prediction.predictor import Conditions, WholeModel
from tests.train.comparison import relative
from tests.train.published import publish

CHANNELS, TEXT, M = 4, 8, 5
TINY = {"hidden": 24, "heads": 2, "layers": 2}
CONFIGS = {
    "dit": DiTConfig(**TINY),
    "st_dit": STDiTConfig(**TINY),
    "mmdit": MMDiTConfig(**TINY),
    "dit, absolute positions": DiTConfig(**TINY, absolute_positions=True),
    "wan": None,
}
WHOLE, GRID = (3, 8, 6), (3, 4, 3)
WINDOWS = {
    "all but a corner": ((1, 2, 2), (2, 6, 4)),
    "rows": ((0, 2, 0), (3, 4, 6)),
    "the end": ((2, 0, 0), (1, 8, 6)),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """Attention where a mask is true."""

    mask: torch.Tensor

    def attend(self, q_BHLD, k_BHMD, v_BHMD):
        return F.scaled_dot_product_attention(q_BHLD, k_BHMD, v_BHMD, attn_mask=self.mask)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "wan"
    publish(folder, "wan", CHANNELS)
    built = {}
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        config = config or DiffusersConfig(name=str(folder), fused=False)
        built[name] = build_denoiser(config, CHANNELS, TEXT).double().eval()
        for parameter in built[name].parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return built


def asked(size=WHOLE):
    draw = torch.Generator().manual_seed(1)
    x, context = (
        torch.randn(*shape, generator=draw, dtype=torch.float64)
        for shape in ((2, CHANNELS, *size), (2, M, TEXT))
    )
    mask = torch.arange(M) < torch.tensor([[M], [2]])
    return x, torch.tensor([0.2, 0.7], dtype=torch.float64), context, mask


def inside(start, size):
    """Which tokens of the whole are in the window, [L]."""
    grid = torch.zeros(GRID, dtype=torch.bool)
    (t, h, w), (T, H, W) = start, size
    grid[t : t + T, h // 2 : (h + H) // 2, w // 2 : (w + W) // 2] = True
    return grid.flatten()


def cut_off(model, start, size):
    """The whole video's prediction, where the window's tokens attend to nothing but each other."""
    x, t, context, mask = asked()
    within_L = inside(start, size)
    own_LL = within_L[:, None] == within_L
    pack = WHOLE_SAMPLES
    if isinstance(model, STDiT):
        # Rows of all frames: attention through time is whole.
        rotation = model.rotation([GRID], slice(None), x.device)
        frames = torch.arange(len(own_LL)) // (GRID[1] * GRID[2])
        seen = Seen(own_LL & (frames[:, None] == frames))
        pack = TokenLayout(within_frames=lambda attention, h: attention(h, h, rotation, blocks=seen))
    elif isinstance(model, MMDiT):
        L = len(within_L)
        seen_B1NN = torch.zeros(2, 1, L + M, L + M, dtype=torch.bool)
        seen_B1NN[..., :L, :L] = own_LL
        seen_B1NN[..., L:, :L] = within_L
        seen_B1NN[..., L:] |= mask[:, None, None]
        pack = TokenLayout(joint=JointSequence([L], [M], Seen(seen_B1NN), Seen(seen_B1NN[..., :L, :])))
    else:
        pack = TokenLayout(self_attend=Seen(own_LL))
    values_BLV = model.denoise(tokens(x, model.patch), t, context, mask, [GRID], pack)
    return join(values_BLV.reshape(2, *GRID, CHANNELS, -1), model.patch)


def part(x, start, size):
    (t, h, w), (T, H, W) = start, size
    return x[:, :, t : t + T, h : h + H, w : w + W]


def run(model, start, size, window):
    x, t, context, mask = asked()
    return WholeModel(model)(part(x, start, size), t, Conditions(context, mask), window)


# Of an ST-DiT's attentions one is masked, the spatial one: windows of rows cut no other.
CASES = [(name, window) for name in CONFIGS for window in WINDOWS if name != "st_dit" or window == "rows"]


@pytest.mark.parametrize(("name", "window"), CASES)
def test_a_window_is_predicted_as_in_the_whole_without_the_rest(models, name, window):
    start, size = WINDOWS[window]
    # Wan keeps its modulation and positions in float32.
    bound = 1e-6 if name == "wan" else 1e-10
    with torch.no_grad():
        found = run(models[name], start, size, Window(start, WHOLE))
        assert relative(found, part(cut_off(models[name], start, size), start, size)) < bound
        # What the rest of the video does to it can be seen.
        x, t, context, mask = asked()
        assert relative(found, part(models[name](x, t, context, mask), start, size)) > 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_positions_are_global_and_only_those_of_joint_attention_to_text_or_absolute_ones_show_it(
    models, name
):
    """Rotary scores depend on differences of positions; text without positions gives them an origin."""
    start, size = WINDOWS["all but a corner"]
    with torch.no_grad():
        there, local = (run(models[name], start, size, place) for place in (Window(start, WHOLE), None))
    error = relative(there, local)
    assert error > 1e-4 if name in ("mmdit", "dit, absolute positions") else error < 1e-6
    if name in ("dit", "mmdit"):
        rotations = []
        model = models[name]
        hook = model.blocks[0].register_forward_pre_hook(lambda _, inputs: rotations.extend(inputs))
        with hook, torch.no_grad():
            run(model, start, size, Window(start, WHOLE))
        given = next(one for one in rotations if isinstance(one, tuple))
        whole = model.rotation([GRID], slice(None), torch.device("cpu"))
        for one, all_ in zip(given, whole, strict=True):
            assert torch.equal(one, all_[inside(start, size)])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_window_of_everything_is_the_whole(models, name):
    with torch.no_grad():
        found = run(models[name], (0, 0, 0), WHOLE, Window((0, 0, 0), WHOLE))
        x, t, context, mask = asked()
        assert torch.equal(found, models[name](x, t, context, mask))


@pytest.mark.parametrize("name", CONFIGS)
def test_without_attention_across_tokens_a_window_is_its_part_of_the_whole(models, name):
    model = models[name]
    kept = {key: value.clone() for key, value in model.state_dict().items()}
    outs = ("attend.out", "spatial.out", "temporal.out", "attn1.to_out.0")
    silenced = [
        module
        for key, module in model.named_modules()
        if key.endswith(outs) and "cross_attend" not in key and ".text." not in key
    ]
    assert silenced
    start, size = WINDOWS["all but a corner"]
    with torch.no_grad():
        for module in silenced:
            module.weight.zero_()
        found = run(model, start, size, Window(start, WHOLE))
        x, t, context, mask = asked()
        expected = part(model(x, t, context, mask), start, size)
        model.load_state_dict(kept)
    assert found.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_windows_that_are_not_whole_patches_of_the_video_are_refused(models):
    with pytest.raises(UsageError, match="do not divide"):
        run(models["dit"], (0, 1, 0), (3, 4, 6), Window((0, 1, 0), WHOLE))
    with pytest.raises(UsageError, match="not within"):
        run(models["wan"], (0, 0, 0), (3, 4, 6), Window((0, 6, 0), WHOLE))
