"""Models of diffusers with our operators in their blocks: the same model, with less kept for the backward."""

import copy
import functools
import importlib
import pickle
import sys
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig
from reelweave.train.kernels.patch.patcher import patch, unpatch
from reelweave.train.kernels.qk_norm.operator import qk_norm
from reelweave.train.models.dit import DiT
from reelweave.train.models.published.context_parallel import JointAttention, SelfAttention
from tests.thorough import beyond, but
from tests.train.diffusers_models import FAMILIES, first_block, inputs_of, model_of, outcome
from tests.train.parallel.wide import Wide

NORMS = {
    "wan": 14,
    "wan, a time per token": 14,
    "wan, two norms": 12,
    "cogvideox": 5,
    "hunyuan": 12,
    "hunyuan, first frame given": 12,
    "cosmos": 15,
    "cosmos, a time per frame": 15,
}
PAIRS = {
    "wan": 4,
    "wan, a time per token": 4,
    "wan, two norms": 4,
    "hunyuan": 3,
    "hunyuan, first frame given": 3,
    "cosmos": 4,
    "cosmos, a time per frame": 4,
}
"""Norms of queries and keys that one operator has together."""
EVERY = pytest.mark.parametrize("family", FAMILIES)
ONE_OF_EACH = pytest.mark.parametrize("family", ["wan", "cogvideox", "hunyuan, first frame given", "cosmos"])


def pair(family, dtype=torch.float32):
    """The model as it is and patched, and inputs."""
    model = model_of(family, dtype)
    patched = copy.deepcopy(model)
    patch(patched)
    return model, patched, inputs_of(family, dtype)


def shares(found, expected):
    """By name, the largest error in units of the largest value; some gradients are zero but for rounding."""
    scale = max(float(x.abs().max()) for name, x in expected.items() if name != "output")
    assert found.keys() == expected.keys()
    return {
        name: float((found[name].double() - exact.double()).abs().max())
        / max(float(exact.abs().max()), 1e-3 * scale)
        for name, exact in expected.items()
    }


@EVERY
@pytest.mark.parametrize("dtype", beyond(1, [torch.float64, torch.float32]), ids=str)
def test_outputs_and_all_gradients_are_those_of_the_model(family, dtype):
    model, patched, inputs = pair(family, dtype)
    # In float64 without rounding to float32, which both do here and there in their own ways.
    with Wide() if dtype == torch.float64 else nullcontext():
        errors = shares(outcome(patched, inputs), outcome(model, inputs))
    bound = 1e-5 if dtype == torch.float32 else 1e-10
    assert len(errors) > 45
    assert {name: error for name, error in errors.items() if error > bound} == {}


@pytest.mark.parametrize("family", ["wan", "cogvideox", "cosmos"])
def test_one_time_serves_all_samples(family):
    model, patched, inputs = pair(family)
    inputs["timestep"] = inputs["timestep"][:1]
    errors = shares(outcome(patched, inputs), outcome(model, inputs))
    assert max(errors.values()) < 1e-5


@EVERY
@pytest.mark.parametrize("autocast", beyond(1, [True, False]), ids=["autocast", "bfloat16"])
def test_in_bfloat16_it_is_as_near_to_the_exact_model_as_before(family, autocast):
    exact_dtype = torch.float32 if family == "cosmos" else torch.float64
    exact = outcome(model_of(family, exact_dtype), inputs_of(family, exact_dtype))
    model, patched, inputs = pair(family, torch.float32 if autocast else torch.bfloat16)

    def errors(model):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = outcome(model, inputs)
        scale = max(float(x.norm()) for name, x in exact.items() if name != "output")
        return {
            name: float((found[name].double() - x.double()).norm() / max(float(x.norm()), 1e-3 * scale))
            for name, x in exact.items()
        }

    before, after = errors(model), errors(patched)
    assert 0 < after["output"] <= 1.2 * before["output"]
    assert sum(after.values()) <= 1.2 * sum(before.values())


@EVERY
def test_every_norm_is_one_operator(family):
    """Counted where the registered operators run: on tensors without data."""
    model, inputs, calls = model_of(family), inputs_of(family), Counter()
    assert patch(model).norms == NORMS[family]

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            calls[function.namespace] += 1
            return function(*args, **(kwargs or {}))

    with Counting(), torch.no_grad():
        model.to("meta")(**{name: x.to("meta") for name, x in inputs.items()})
    # The norms of a CogVideoX block serve video and text.
    wanted = NORMS[family] - PAIRS.get(family, 0) + (4 if family == "cogvideox" else 0)
    assert calls["reelweave"] == wanted


def kept(block, args, kwargs):
    """Bytes that autograd keeps, each storage once; weights are there anyway."""
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    storages = {}

    def pack(x):
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = (storage.nbytes(), x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        block(*args, **kwargs)
    return sum(size for place, (size, _) in storages.items() if place not in own)


@pytest.mark.parametrize(
    ("family", "saved"),
    beyond(
        1, [("hunyuan", 16), ("wan", 34), ("wan, a time per token", 42), ("cogvideox", 4), ("cosmos", 24)]
    ),
)
def test_what_a_block_keeps_less_per_token_and_channel(family, saved):
    """Bytes, as the table of docs/patch.md says; means and deviations of the norms come to a few percent."""
    model, inputs = model_of(family, torch.bfloat16, heads=16), inputs_of(family, torch.bfloat16, H=32, W=32)
    block, args, kwargs = first_block(model, inputs)
    before = kept(block, args, kwargs)
    patch(model)
    tokens = 2 * (2 * 16 * 16 + (5 if family in ("cogvideox", "hunyuan") else 0))
    assert (before - kept(block, args, kwargs)) / (tokens * 256) == pytest.approx(saved, rel=0.05)


@EVERY
def test_patching_changes_no_name_and_no_value_and_can_be_undone(family):
    model, patched, inputs = pair(family)
    before, after = model.state_dict(), patched.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [name for name, _ in patched.named_modules()] == [name for name, _ in model.named_modules()]
    assert repr(patched) == repr(model)
    again = patch(patched)
    assert (again.swapped, again.norms) == (Counter(), 0)
    assert sum(again.already.values()) == unpatch(patched) > 0
    assert [type(module) for module in patched.modules()] == [type(module) for module in model.modules()]
    expected = outcome(model, inputs)
    assert all(torch.equal(found, expected[name]) for name, found in outcome(patched, inputs).items())


@ONE_OF_EACH
def test_a_saved_copied_or_pickled_model_is_the_same_model(family, tmp_path):
    model, patched, inputs = pair(family)
    expected = outcome(patched, inputs)
    patched.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    copies = [copy.deepcopy(patched), pickle.loads(pickle.dumps(patched))]
    assert patch(loaded).norms == NORMS[family]
    for one in [loaded, *copies]:
        found = outcome(one, inputs)
        assert all(torch.equal(found[name], x) for name, x in expected.items())
    assert all(unpatch(one) for one in copies)


@ONE_OF_EACH
def test_checkpointed_blocks_give_the_same_gradients(family):
    _, patched, inputs = pair(family)
    expected = outcome(patched.train(), inputs)
    patched.enable_gradient_checkpointing()
    found = outcome(patched, inputs)
    assert all(torch.equal(found[name], x) for name, x in expected.items())


COMPILED = ("cosmos", "wan", "cogvideox", "hunyuan, first frame given")


@pytest.mark.parametrize("family", but([], COMPILED, COMPILED[1::2]))
def test_a_block_compiles_without_a_break(family):
    _, patched, inputs = pair(family)
    block, args, kwargs = first_block(patched, inputs)
    torch._dynamo.reset()
    # The operators' backward in a compiled graph is theirs alone: one family shows it.
    backend = "aot_eager" if family == "wan" else "eager"
    found = torch.compile(block, backend=backend, fullgraph=True)(*args, **kwargs)
    expected = block(*args, **kwargs)
    pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    for a, b in pairs:
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)
    sums = [sum(x.sum() for x in (out if isinstance(out, tuple) else (out,))) for out in (found, expected)]
    mine, theirs = (torch.autograd.grad(one, list(block.parameters()), retain_graph=True) for one in sums)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(mine, theirs, strict=True))


def test_what_is_not_the_code_that_is_known_is_left_alone(monkeypatch):
    from diffusers.models.transformers import transformer_wan

    original = transformer_wan.WanTransformerBlock.forward

    @functools.wraps(original)
    def forward(self, *args, **kwargs):
        return 2 * original(self, *args, **kwargs)

    model = model_of("wan")
    with monkeypatch.context() as changed:
        changed.setattr(transformer_wan.WanTransformerBlock, "forward", forward)
        report = patch(model)
        assert report.swapped == Counter(WanAttention=4)
        assert list(report.left) == ["blocks.0", "blocks.1", ""]
        assert "0.38" in report.left["blocks.0"]
    assert patch(model).norms == 6


def test_an_unknown_processor_is_called_and_ours_for_parts_of_a_sequence_is_looked_through(monkeypatch):
    from diffusers.models.transformers.transformer_wan import WanAttnProcessor

    class Theirs(WanAttnProcessor):
        def __call__(self, *args, **kwargs):
            calls.append("theirs")
            return super().__call__(*args, **kwargs)

    model, patched, inputs = pair("wan")
    expected, calls = outcome(model, inputs), []
    patched.blocks[0].attn1.set_processor(Theirs())
    patched.blocks[0].attn2.set_processor(SelfAttention(WanAttnProcessor()))
    patched.blocks[1].attn1.set_processor(SelfAttention(Theirs()))
    monkeypatch.setattr(
        "reelweave.train.kernels.patch.blocks.transformer_wan.qk_norm",
        lambda *args, **how: calls.append("fused") or qk_norm(*args, **how),
    )
    found = outcome(patched, inputs)
    assert calls == ["theirs", "fused", "theirs", "fused"]
    assert max(shares(found, expected).values()) < 1e-5


@pytest.mark.parametrize("shape", [(2, 6, 1), (1, 6, 2)], ids=["each sample", "each head"])
def test_positions_of_each_sample_or_head_turn_their_own_tokens(shape):
    model, patched, _ = pair("wan")
    x_BLD, angles = torch.randn(2, 6, 32), torch.rand(*shape, 8).repeat_interleave(2, dim=-1) * 6
    found, expected = (
        one.blocks[0].attn1(x_BLD, None, None, (angles.cos(), angles.sin())) for one in (patched, model)
    )
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)


def attention_of(family, layer=0):
    """A self-attention of the model with what a block gives it, as it is and fused, in float64."""
    model, patched, _ = pair(family, torch.float64)
    blocks = "single_transformer_blocks" if family == "hunyuan" and layer else "transformer_blocks"
    name = "attn" if family == "hunyuan" else "attn1"
    text = (
        {"encoder_hidden_states": torch.randn(2, 3, 32, dtype=torch.float64)} if family == "hunyuan" else {}
    )
    return [one.get_submodule(f"{blocks}.0.{name}") for one in (model, patched)], text


PER_HEAD = pytest.mark.parametrize(("family", "layer"), [("hunyuan", 0), ("hunyuan", 1), ("cosmos", 0)])


def rotation_of(family, *shape, dtype=torch.float64):
    """Cosines and sines in the form of the family, one for each channel."""
    angles = torch.rand(*shape, 8, dtype=dtype) * 6
    each = torch.cat([angles, angles], dim=-1) if family == "cosmos" else angles.repeat_interleave(2, dim=-1)
    return each.cos(), each.sin()


@PER_HEAD
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_positions_of_either_precision_turn_heads_exactly(family, layer, dtype):
    """Angles of float64 are used as they are, where queries are float64; each sample has its own tokens."""
    (theirs, fused), text = attention_of(family, layer)
    x_BLD = torch.randn(2, 6, 32, dtype=torch.float64)
    how = text | {"image_rotary_emb": rotation_of(family, 6, dtype=dtype)}
    with Wide():
        found, expected = (attention(x_BLD, **how) for attention in (fused, theirs))
    whole = found if isinstance(found, tuple) else (found,)
    assert type(fused).__module__.startswith("reelweave.train.kernels.patch")
    for mine, of_theirs in zip(whole, expected if isinstance(found, tuple) else (expected,), strict=True):
        assert torch.allclose(mine, of_theirs, rtol=1e-11, atol=1e-11)
    # Without the wide arithmetic diffusers' rounds angles and values to float32, and the fused one nothing.
    assert torch.equal(fused(x_BLD, **how)[0], found[0])


@PER_HEAD
def test_positions_in_another_form_and_an_unknown_processor_stay_theirs(family, layer):
    (theirs, fused), text = attention_of(family, layer)
    x_BLD, known = torch.randn(2, 6, 32, dtype=torch.float64), fused.processor

    class Other(type(known)):
        def __call__(
            self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, image_rotary_emb=None
        ):
            calls.append(image_rotary_emb)
            return known(attn, hidden_states, encoder_hidden_states, attention_mask)

    calls, plain = [], rotation_of(family, 6)
    expected = theirs(x_BLD, **text)[0]
    # Diffusers' own refuses rows of each sample; so must we, not turn all by the first sample's.
    with pytest.raises(RuntimeError):
        theirs(x_BLD, **text, image_rotary_emb=rotation_of(family, 2, 6))
    with pytest.raises(RuntimeError):
        fused(x_BLD, **text, image_rotary_emb=rotation_of(family, 2, 6))
    fused.set_processor(Other())
    assert torch.equal(fused(x_BLD, **text, image_rotary_emb=plain)[0], expected)
    assert calls == [plain]
    fused.set_processor(JointAttention(known))
    assert torch.allclose(fused(x_BLD, **text)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("change", ["bias", "eps", "hook"])
def test_norms_of_heads_that_the_operator_does_not_have_stay_theirs(change):
    model, patched, inputs = pair("hunyuan")
    for one in (model, patched):
        norm = one.transformer_blocks[0].attn.norm_k
        if change == "bias":
            norm.bias = torch.nn.Parameter(torch.ones(16))
        elif change == "eps":
            norm.eps = 0.1
        else:
            unpatch(one)
            norm.register_forward_hook(lambda _module, _inputs, x: 2 * x)
            if one is patched:
                assert "norm_k has hooks" in patch(one).left["transformer_blocks.0.attn"]
    assert max(shares(outcome(patched, inputs), outcome(model, inputs)).values()) < 1e-5


def test_attention_of_the_text_refiner_and_to_pictures_stays_theirs():
    from diffusers.models.transformers.transformer_cosmos import CosmosTransformerBlock

    report = patch(model_of("hunyuan"))
    assert report.swapped["Attention"] == 2
    assert not [path for path in report.left if path.endswith("attn")]
    block = CosmosTransformerBlock(2, 16, 8, adaln_lora_dim=6, img_context=True)
    report = patch(torch.nn.ModuleList([block]))
    assert report.swapped == Counter(CosmosTransformerBlock=1, Attention=1)
    assert "pictures" in report.left["0.attn2"]


def test_a_diffusers_without_the_classes_is_refused(monkeypatch):
    from diffusers.models.transformers import transformer_cosmos

    model = model_of("cosmos")
    monkeypatch.delattr(transformer_cosmos, "CosmosAdaLayerNorm")
    monkeypatch.delitem(sys.modules, "reelweave.train.kernels.patch.blocks.transformer_cosmos", raising=False)
    with pytest.raises(UsageError, match=r"0\.38 .*CosmosAdaLayerNorm"):
        patch(model)


def derive(block):
    block.__class__ = type("Derived", (type(block),), {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (derive, "is a Derived"),
        (lambda block: setattr(block, "forward", block.forward), "its forward is replaced"),
        (lambda block: setattr(block, "norm2", torch.nn.LayerNorm(32)), "norm2 is a LayerNorm"),
        (lambda block: block.norm3.register_forward_hook(lambda *_: None), "norm3 has hooks"),
        (lambda block: delattr(block, "norm3"), "has no norm3"),
    ],
    ids=["class", "forward", "norm", "hook", "missing"],
)
def test_a_block_that_differs_is_left_alone(change, reason):
    model = model_of("wan")
    change(model.blocks[1])
    report = patch(model)
    assert (report.norms, report.swapped) == (3 + 8, Counter(WanTransformerBlock=1, WanAttention=4))
    assert reason in report.left["blocks.1"]
    assert f"blocks.1: {report.left['blocks.1']}" in str(report)


def test_our_own_model_has_them_already():
    report = patch(DiT(DiTConfig(hidden=48, heads=2, layers=3), channels=6, text_width=5))
    assert (report.swapped, report.already) == (Counter(), Counter(Block=3))


def test_a_model_of_no_known_family_is_refused(monkeypatch):
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    for model in (torch.nn.Linear(2, 2), WanRotaryPosEmbed(16, (1, 2, 2), 8)):
        with pytest.raises(UsageError, match="cogvideox_transformer_3d or "):
            patch(model)
        assert unpatch(model) == 0
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(UsageError, match=r"reelweave\[diffusers\]"):
        patch(torch.nn.Linear(2, 2))


def test_blocks_are_sharded_after_they_are_patched():
    model, patched, inputs = pair("wan")
    expected = outcome(patched, inputs)
    # First imported while there is a group, it would keep that group to the end of the process.
    importlib.import_module("torch.distributed.nn.functional")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        for sharded in (patched, model):
            for block in sharded.blocks:
                torch.distributed.fsdp.fully_shard(block, mesh=mesh)
        out = patched(**inputs, return_dict=False)[0]
        assert torch.allclose(out, expected["output"], rtol=1e-5, atol=1e-5)
        assert patch(patched).already == Counter(WanTransformerBlock=2, WanAttention=4)
        with pytest.raises(UsageError, match="unpatch before"):
            unpatch(patched)
        assert "before it is sharded" in patch(model).left["blocks.0"]
    finally:
        torch.distributed.destroy_process_group()
