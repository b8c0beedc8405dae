"""What every kind of model has in common, and what each kind is: against references in float64."""

import math

import pytest
import torch
from torch.nn import functional as F

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig, MMDiTConfig, STDiTConfig
from reelweave.train.models.attention.joint import JointSequence
from reelweave.train.models.attention.positions import rotary_angles
from reelweave.train.models.attention.segments import Segments
from reelweave.train.models.attention.spatial_temporal import SpatialTemporalAttention
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.dit import WHOLE_SAMPLES, through
from reelweave.train.models.mmdit import JointBlock
from reelweave.train.models.modulation import ZeroLinear
from reelweave.train.step.squared_errors import DenoisingInputs
from tests.thorough import but, thorough
from tests.train.clips import tiny_config
from tests.train.comparison import gradients, relative, relative_errors

SHAPE = {"hidden": 32, "heads": 2, "layers": 2}
KINDS = {
    "dit": DiTConfig(**SHAPE),
    "dit, low rank": DiTConfig(**SHAPE, adaln_rank=3),
    "st_dit": STDiTConfig(**SHAPE),
    "st_dit, full, low rank": STDiTConfig(**SHAPE, adaln_rank=3, full_attention=True),
    "mmdit": MMDiTConfig(**SHAPE),
    "dit, absolute positions": DiTConfig(**SHAPE, absolute_positions=True),
    "mmdit, low rank": MMDiTConfig(**SHAPE, adaln_rank=3),
}
ALL = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
PACK = [(3, 4, 6), (1, 4, 4), (1, 8, 2), (5, 2, 4), (2, 6, 6)]


def model(config, dtype=torch.float32, trained=True):
    torch.manual_seed(0)
    built = build_denoiser(config, channels=6, text_width=5)
    if trained:
        for parameter in built.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return built.to(dtype)


def inputs(size=(3, 4, 6), batch=2, text=4, dtype=torch.float32):
    torch.manual_seed(1)
    mask_BM = torch.ones(batch, text, dtype=torch.bool)
    latents = torch.randn(batch, 6, *size, dtype=dtype)
    return latents, torch.rand(batch, dtype=dtype), torch.randn(batch, text, 5, dtype=dtype), mask_BM


def pack(dtype):
    """Latents of several shapes, times, and captions of 2, 3, 4, ... tokens."""
    torch.manual_seed(1)
    latents = [torch.randn(6, *size, dtype=dtype) for size in PACK]
    mask_BM = torch.arange(7) < 2 + torch.arange(len(PACK))[:, None]
    return latents, torch.rand(len(PACK), dtype=dtype), torch.randn(len(PACK), 7, 5, dtype=dtype), mask_BM


@ALL
def test_one_model_takes_latents_of_any_size(config):
    denoiser = model(config)
    for size in [(1, 2, 2), (3, 4, 6), (5, 8, 2)]:
        assert denoiser(*inputs(size)).shape == (2, 6, *size)


@pytest.mark.parametrize("config", [DiTConfig(**SHAPE), STDiTConfig(**SHAPE), MMDiTConfig(**SHAPE)])
def test_only_absolute_positions_give_equal_tokens_unequal_predictions(config):
    _, *rest = inputs(dtype=torch.float64)
    equal = torch.ones(2, 6, 3, 4, 6, dtype=torch.float64)
    config = config.model_copy(update={"patch": (1, 1, 1)})
    if config.kind != "mmdit":  # whose text tokens, at no place, are a point to measure distances from
        predicted = model(config, torch.float64)(equal, *rest)
        torch.testing.assert_close(predicted, predicted[..., :1, :1, :1].expand_as(predicted))
    placed = config.model_copy(update={"absolute_positions": True})
    values_BCL = model(placed, torch.float64)(equal, *rest).flatten(2)
    distances_BLL = torch.cdist(values_BCL.transpose(1, 2), values_BCL.transpose(1, 2))
    assert distances_BLL[:, ~torch.eye(72, dtype=torch.bool)].min() > 1e-3 * values_BCL.std()


@ALL
def test_an_untrained_model_predicts_zero_and_its_blocks_change_nothing(config):
    denoiser = model(config, trained=False)
    assert not denoiser(*inputs()).any()
    x_BLD = torch.randn(2, 18, 32)
    rotation = (torch.ones(18, 8), torch.zeros(18, 8))
    layout = WHOLE_SAMPLES._replace(grids=[(3, 2, 3)])
    mask_BM = torch.ones(2, 4, dtype=torch.bool)
    through, _ = denoiser.through_blocks(
        x_BLD, torch.randn(2, 32), torch.randn(2, 4, 32), mask_BM, rotation, layout
    )
    assert torch.equal(through, x_BLD)


@ALL
def test_masked_text_does_not_count(config):
    x, t, context, mask = inputs()
    mask[:, 2:] = False
    denoiser, changed = model(config), context.clone()
    changed[:, 2:] = 100
    expected = denoiser(x, t, context, mask)
    torch.testing.assert_close(denoiser(x, t, changed, mask), expected)
    torch.testing.assert_close(denoiser(x, t, context[:, :2], mask[:, :2]), expected)


@ALL
def test_a_mask_that_hides_nothing_changes_no_bit(config):
    dit, (latents, t_B, context_BMD, mask_BM) = model(config), inputs()
    assert torch.equal(dit(latents, t_B, context_BMD, None), dit(latents, t_B, context_BMD, mask_BM))


def test_text_has_a_mask_unless_the_host_knows_that_none_is_padded():
    latents, t_B, context_BMD, mask_BM = inputs()
    padded_BM = mask_BM.clone()
    padded_BM[0, -1] = False

    def given(mask_BM, host_mask_BM):
        asked = DenoisingInputs(
            [latents], [], t_B, context_BMD, mask_BM, packed=False, host_mask=host_mask_BM
        )
        return asked.padding_mask

    assert given(mask_BM, mask_BM) is None
    assert given(padded_BM, padded_BM) is padded_BM
    assert given(mask_BM, None) is mask_BM


@ALL
def test_the_conditioning_changes_the_prediction(config):
    x, t, context, mask = inputs()
    denoiser = model(config)
    expected = denoiser(x, t, context, mask)
    for other in ((x, t, context + 1, mask), (x, 1 - t, context, mask)):
        assert not torch.allclose(denoiser(*other), expected, atol=1e-3)


@ALL
def test_equal_patches_at_different_places_are_told_apart(config):
    _, t, context, mask = inputs()
    x = torch.zeros(2, 6, 3, 4, 6)
    x[:, :, 0, :2, :2] = torch.randn(2, 6, 2, 2)
    out = model(config)(x, t, context, mask)
    assert not torch.allclose(out[:, :, 1, :2, :2], out[:, :, 2, 2:, 4:], atol=1e-4)


@ALL
def test_every_weight_gets_a_gradient(config):
    denoiser = model(config)
    denoiser(*inputs()).square().sum().backward()
    without = [name for name, p in denoiser.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@ALL
def test_latents_that_do_not_divide_into_patches_are_refused(config):
    with pytest.raises(UsageError, match="3x5x6"):
        model(config)(*inputs((3, 5, 6)))


@ALL
def test_a_packs_predictions_and_gradients_are_those_of_its_samples_alone(config):
    latents, *conditions = pack(torch.float64)
    packed, alone = model(config, torch.float64), model(config, torch.float64)
    found = packed.forward_packed(latents, *conditions)
    expected = [
        alone(x_CTHW[None], *(part[i : i + 1] for part in conditions))[0] for i, x_CTHW in enumerate(latents)
    ]
    for predictions in (found, expected):
        torch.stack([prediction.square().mean() for prediction in predictions]).mean().backward()
    for one, wanted in zip(found, expected, strict=True):
        assert relative(one, wanted) <= 1e-10
    errors = relative_errors(gradients(packed), gradients(alone))
    assert {name: error for name, error in errors.items() if not error <= 1e-10} == {}


@ALL
@pytest.mark.parametrize("what", ["latents", "times", "text"])
def test_a_packed_sample_changes_no_bit_of_another(config, what):
    denoiser, (latents, t_B, context_BMD, mask_BM) = model(config), pack(torch.float32)
    with torch.no_grad():
        before = denoiser.forward_packed(latents, t_B, context_BMD, mask_BM)
        {"latents": latents, "times": t_B, "text": context_BMD}[what][2] += 100.0
        after = denoiser.forward_packed(latents, t_B, context_BMD, mask_BM)
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [True, True, False, True, True]


@ALL
def test_bfloat16_under_autocast_stays_near_float32(config):
    denoiser = model(config)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.mul_(0.5)
        full = denoiser(*inputs())
        with torch.autocast("cpu", torch.bfloat16):
            half = denoiser(*inputs())
    assert half.dtype == torch.bfloat16
    assert relative(half.float(), full) < 0.03


@pytest.mark.parametrize("config", [config for config in KINDS.values() if config.adaln_rank])
def test_a_low_rank_modulation_is_the_full_one_of_its_product(config):
    low = model(config, torch.float64)
    full = model(config.model_copy(update={"adaln_rank": None}), torch.float64)
    weights = low.state_dict()
    for name in full.state_dict():
        if "modulation" in name and name.endswith("weight"):
            stem = name.removesuffix("weight")
            weights[name] = weights.pop(f"{stem}1.weight") @ weights.pop(f"{stem}0.weight")
        elif "modulation" in name:
            weights[name] = weights.pop(name.replace("bias", "1.bias"))
    full.load_state_dict(weights)
    sample = inputs(dtype=torch.float64)
    assert relative(low(*sample), full(*sample)) <= 1e-12


def test_branches_are_gated_residuals_of_modulated_norms():
    torch.manual_seed(0)
    x, vectors = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 3, 8, dtype=torch.float64)
    branches = (torch.sin, torch.cos, torch.tanh)
    expected = x
    for number, branch in enumerate(branches):
        shift, scale, gate = vectors[:, number, :, None].unbind(1)
        h = F.layer_norm(expected, (8,), eps=1e-6) * (1 + scale) + shift
        expected = expected + gate * branch(h)
    found = through(x, branches, vectors.flatten(1), None)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_block_attends_to_all_then_to_its_frame_then_through_time():
    denoiser, order = model(KINDS["st_dit, full, low rank"]), []
    for name, module in denoiser.blocks[0].named_children():
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    denoiser(*inputs())
    assert order == ["modulation", "full", "spatial", "temporal", "cross_attend", "mlp"]


@thorough
@pytest.mark.parametrize("kind", but(["mmdit"], ["mmdit", "st_dit"], ()))
def test_each_block_compiles_whole(kind):
    denoiser = model(KINDS[kind].model_copy(update={"layers": 1}))
    expected = denoiser(*inputs())
    torch._dynamo.reset()
    for block in denoiser.repeated():
        block.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(denoiser(*inputs()), expected)


def test_a_layer_of_zeros_draws_what_another_layer_draws():
    states = []
    for kind in (torch.nn.Linear, ZeroLinear):
        torch.manual_seed(0)
        layer = kind(3, 4)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    assert not layer.weight.any()
    assert not layer.bias.any()


@pytest.mark.parametrize("axis", ["frame", "place"])
@pytest.mark.parametrize(("batch", "grids"), [(2, [(3, 2, 4)]), (1, [(3, 2, 4), (1, 3, 3), (5, 1, 2)])])
def test_attention_apart_is_attention_under_the_mask_of_its_slices(axis, batch, grids):
    torch.manual_seed(0)
    lengths = [math.prod(grid) for grid in grids]
    q, k, v = (torch.randn(batch, sum(lengths), 2, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3))
    slices = []
    for number, (grid, length) in enumerate(zip(grids, lengths, strict=True)):
        places = grid[1] * grid[2]
        token = torch.arange(length)
        slices.append(1000 * number + (token // places if axis == "frame" else token % places))
    of = torch.cat(slices)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=of[:, None] == of)
    torch.testing.assert_close(
        SpatialTemporalAttention(grids, axis).attend(q, k, v), expected, rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("last", [False, True])
def test_a_joint_block_is_what_the_paper_draws(last):
    """Each sample by itself, its text without padding, the softmax written out."""
    config = MMDiTConfig(hidden=24, heads=2, layers=1)
    torch.manual_seed(0)
    block = JointBlock(config, last).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, text, condition = (torch.randn(2, *shape, 24, dtype=torch.float64) for shape in [(6,), (5,), ()])
    mask = torch.tensor([[True, True, True, True, True], [True, False, True, False, False]])
    angles = rotary_angles((1, 2, 3), 12, torch.device("cpu"))
    rotation = (angles.cos(), angles.sin())
    found = block(x, text, condition, rotation, JointSequence.pad(6, 5, mask), WHOLE_SAMPLES)

    turns = torch.complex(*(part.double() for part in rotation))[:, None]

    def heads(stream, kind, h, turns):
        layers = getattr(stream, "attend", stream)
        y = getattr(layers, kind)(h).unflatten(1, (2, 12))
        if kind == "value":
            return y
        y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * getattr(layers, f"{kind}_norm").weight
        turned = torch.view_as_complex(torch.stack(y.chunk(2, dim=-1), dim=-1))
        turned = turned * turns
        return torch.cat([turned.real, turned.imag], dim=-1)

    def normed(x, shift, scale):
        return F.layer_norm(x, (24,), eps=1e-6) * (1 + scale) + shift

    for i in range(2):
        streams = [(block.video, x[i], turns), (block.text, text[i][mask[i]], 1)]
        vectors = [stream.modulation(condition[i]).view(-1, 24) for stream, _, _ in streams]
        h = [normed(x, v[0], v[1]) for (_, x, _), v in zip(streams, vectors, strict=True)]
        k, v = (
            torch.cat([heads(stream, kind, h_, at) for (stream, _, at), h_ in zip(streams, h, strict=True)])
            for kind in ("key", "value")
        )
        for number, (stream, tokens, at) in enumerate(streams[: 1 if last else 2]):
            _, _, gate, shift, scale, last_gate = vectors[number]
            q = heads(stream, "query", h[number], at)
            weights = torch.einsum("lhd,mhd->hlm", q, k).div(12**0.5).softmax(-1)
            tokens = tokens + gate * stream.attend.out(torch.einsum("hlm,mhd->lhd", weights, v).flatten(1))
            tokens = tokens + last_gate * stream.mlp(normed(tokens, shift, scale))
            mine = found[0][i] if number == 0 else found[1][i][mask[i]]
            torch.testing.assert_close(mine, tokens, rtol=1e-10, atol=1e-10)


def test_joint_streams_come_apart_as_they_were_joined():
    video, text = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 6, 4)
    joint = JointSequence.of_packed(
        *(Segments.of(lengths, torch.device("cpu")) for lengths in ([5, 1, 3], [1, 3, 2]))
    )
    joined = joint.join(video, text)
    assert torch.equal(joined[:, :, :6], torch.cat([video[:, :, :5], text[:, :, :1]], dim=2))
    assert all(map(torch.equal, joint.part(joined), (video, text)))


@ALL
def test_weights_drawn_layer_by_layer_are_those_of_construction(config):
    run = tiny_config().model_copy(update={"model": config, "seed": 7})
    before = torch.get_rng_state()
    built, empty = Bundle(run), Bundle(run, meta=True)
    assert all(parameter.is_meta for parameter in empty.dit.parameters())
    drawn = dict(empty.initial_weights())
    assert torch.equal(torch.get_rng_state(), before)
    expected = built.dit.state_dict()
    assert list(drawn) == list(expected)
    assert [name for name in drawn if not torch.equal(drawn[name], expected[name])] == []
    assert torch.equal(empty.text.table.weight, built.text.table.weight)
    other = dict(Bundle(run.model_copy(update={"seed": 8}), meta=True).initial_weights())
    assert not torch.equal(other["embed.weight"], drawn["embed.weight"])
    empty.dit.load_state_dict(drawn, assign=True)
    assert [name for name, weight in empty.dit.named_parameters() if not weight.requires_grad] == []


def test_the_names_of_a_dits_weights_are_those_of_older_checkpoints():
    names = set(model(DiTConfig(hidden=32, heads=2, layers=1)).state_dict())
    attention = {"query", "key", "value", "out"}
    layers = {"embed", "embed_time.0", "embed_time.2", "embed_text", "modulation", "head"}
    layers |= {f"blocks.0.{own}.{name}" for own in ("attend", "cross_attend") for name in attention}
    layers |= {f"blocks.0.{name}" for name in ("mlp.0", "mlp.2", "modulation")}
    norms = {
        f"blocks.0.{own}.{name}_norm.weight"
        for own in ("attend", "cross_attend")
        for name in ("query", "key")
    }
    assert names == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")} | norms
