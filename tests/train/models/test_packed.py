"""Samples of different shapes in one sequence: losses and gradients as alone, and nothing seen of each other."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_mask
from torch.utils._python_dispatch import TorchDispatchMode

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import Position
from reelweave.train.config.model import DiTConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig, RootShift
from reelweave.train.models.attention.packed import BLOCK, BlockDiagonal
from reelweave.train.models.attention.segments import Segments
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.dit import DiT
from reelweave.train.parallel.activations import keeps
from reelweave.train.step.losses import losses
from tests.thorough import beyond
from tests.train.clips import clip, tiny_config
from tests.train.comparison import gradients, relative, relative_errors

CPU = torch.device("cpu")
PACKS = {
    "images and videos": [(3, 4, 6), (1, 4, 4), (1, 8, 2), (5, 2, 4), (2, 6, 6)],
    "one video": [(3, 4, 6)],
    "images": [(1, 4, 4), (1, 2, 6), (1, 4, 4)],
}


def model(dtype: torch.dtype) -> DiT:
    torch.manual_seed(0)
    dit = DiT(DiTConfig(hidden=32, heads=2, layers=2), channels=6, text_width=5)
    for parameter in dit.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return dit.to(dtype)


def inputs(sizes, dtype=torch.float32):
    """Latents of these sizes, times, and captions of 2, 3, 4, ... tokens."""
    torch.manual_seed(1)
    latents = [torch.randn(6, *size, dtype=dtype) for size in sizes]
    mask_BM = torch.arange(7) < 2 + torch.arange(len(sizes))[:, None]
    return latents, torch.rand(len(sizes), dtype=dtype), torch.randn(len(sizes), 7, 5, dtype=dtype), mask_BM


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("sizes", PACKS.values(), ids=PACKS)
def test_loss_and_gradients_are_those_of_the_samples_one_by_one(sizes, dtype, tolerance):
    latents, t_B, context_BMD, mask_BM = inputs(sizes, dtype)
    packed, alone = model(dtype), model(dtype)

    def mean_loss(predictions):
        # Per sample, not per token.
        return torch.stack(
            [(p - x).square().mean() for p, x in zip(predictions, latents, strict=True)]
        ).mean()

    loss = mean_loss(packed.forward_packed(latents, t_B, context_BMD, mask_BM))
    loss.backward()
    one_by_one = [
        alone(latents[i][None], t_B[i : i + 1], context_BMD[i : i + 1], mask_BM[i : i + 1])[0]
        for i in range(len(sizes))
    ]
    expected = mean_loss(one_by_one)
    expected.backward()
    assert relative(loss, expected) <= tolerance
    wanted = gradients(alone)
    assert all(gradient.any() for gradient in wanted.values())
    errors = relative_errors(gradients(packed), wanted)
    assert {name: error for name, error in errors.items() if not error <= tolerance} == {}


@pytest.mark.parametrize("changed", range(5))
@pytest.mark.parametrize("what", ["latents", "times", "text"])
def test_a_sample_changes_no_bit_of_another(what, changed):
    dit, (latents, t_B, context_BMD, mask_BM) = model(torch.float32), inputs(PACKS["images and videos"])
    with torch.no_grad():
        before = dit.forward_packed(latents, t_B, context_BMD, mask_BM)
        {"latents": latents, "times": t_B, "text": context_BMD}[what][changed] += 100.0
        after = dit.forward_packed(latents, t_B, context_BMD, mask_BM)
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [number != changed for number in range(5)]


def test_a_sample_that_is_not_a_number_stays_alone_with_it():
    dit, (latents, *conditions) = model(torch.float32), inputs(PACKS["images and videos"])
    latents[1].fill_(torch.nan)
    predictions = dit.forward_packed(latents, *conditions)
    assert [bool(x.isfinite().all()) for x in predictions] == [True, False, True, True, True]


def test_text_that_is_masked_does_not_count_in_a_pack():
    dit, (latents, t_B, context_BMD, mask_BM) = model(torch.float32), inputs(PACKS["images"])
    before = dit.forward_packed(latents, t_B, context_BMD, mask_BM)
    after = dit.forward_packed(latents, t_B, context_BMD.where(mask_BM[..., None], 9.0), mask_BM)
    assert all(map(torch.equal, before, after))


def test_a_shape_that_does_not_divide_into_patches_is_refused():
    latents, *conditions = inputs([(1, 4, 4), (3, 5, 6)])
    with pytest.raises(UsageError, match="3x5x6"):
        model(torch.float32).forward_packed(latents, *conditions)


def test_a_caption_too_many_is_refused():
    latents, *conditions = inputs(PACKS["images"])
    with pytest.raises(UsageError, match="2 packed samples cannot attend to 3"):
        model(torch.float32).forward_packed(latents[:2], *conditions)


LENGTHS = {
    "within a block": ([5, 1, 9], [2, 7, 1]),
    "over several blocks": ([70, 300, 1, 190], [1, 20, 3, 200]),
    "at their borders": ([BLOCK, 2 * BLOCK, BLOCK], [BLOCK, 1, BLOCK - 1]),
    "one": ([300], [40]),
}


def blocks(queries, keys):
    return BlockDiagonal(Segments.of(queries, CPU), Segments.of(keys, CPU))


def dense(queries, keys):
    """What the samples of two packed sequences see of each other, bool [L, M]."""
    return torch.block_diag(*(torch.ones(q, k) for q, k in zip(queries, keys, strict=True))).bool()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("cross", beyond(1, [True, False]))
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_all_ways_to_attend_agree(lengths, cross):
    queries, keys = lengths if cross else (lengths[0], lengths[0])
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, sum(of), 16) for of in (queries, keys, keys))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense(queries, keys))
    for backend in ("segments", "flex", None):
        torch.testing.assert_close(
            blocks(queries, keys).attend(q, k, v, backend), expected, atol=2e-6, rtol=2e-6
        )


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_the_mask_of_blocks_is_block_diagonal(lengths):
    mask = blocks(*lengths).block_mask
    L, M = map(sum, lengths)
    wanted = dense(*lengths)
    assert torch.equal(create_mask(mask.mask_mod, 1, 1, L, M, device="cpu")[0, 0], wanted)
    whole = torch.nn.functional.pad(wanted, (0, -M % BLOCK, 0, -L % BLOCK))
    seen = whole.reshape(-(-L // BLOCK), BLOCK, -(-M // BLOCK), BLOCK)
    assert torch.equal(mask.to_dense()[0, 0].bool(), seen.any(dim=3).any(dim=1))
    full = torch.zeros_like(seen[:, 0, :, 0])
    for row, count in enumerate(mask.full_kv_num_blocks[0, 0].tolist()):
        full[row, mask.full_kv_indices[0, 0, row, :count].long()] = True
    assert torch.equal(full, seen.all(dim=3).all(dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_half_precision_goes_to_flash_attention(dtype):
    """Shapes and arguments alone: no GPU is needed for them."""
    with FakeTensorMode(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        offsets = torch.empty(4, dtype=torch.int32, device="cuda")
        pair = BlockDiagonal(Segments([70, 3, 9], offsets), Segments([1, 2, 3], offsets))
        q, kv = (torch.empty(1, 2, length, 16, dtype=dtype, device="cuda") for length in (82, 6))
        with Operators() as run:
            assert pair.attend(q, kv, kv).shape == q.shape
    # Or selective checkpointing would attend again in the backward.
    assert [str(operator) for operator in run.found if keeps(operator)] == ["torch_attn._varlen_attn.default"]


class Operators(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found.add(func)
        return func(*args, **(kwargs or {}))


def clips():
    """An image, two videos of one shape and one of another, and their captions."""
    shapes = [Bucket(1, 16, 16), Bucket(5, 16, 16), Bucket(3, 16, 24), Bucket(5, 16, 16)]
    videos = [clip(number, shape) for number, shape in enumerate(shapes)]
    keys = [f"clip{number}" for number in range(4)]
    return shapes, Pack(
        buckets=tuple(shapes),
        lengths=(100,) * len(shapes),
        videos=tuple(videos),
        keys=tuple(keys),
        captions=tuple(f"a wave going {key}" for key in keys),
        passes=(2,) * len(keys),
        step=0,
        epoch=2,
        weight=1.0,
        step_samples=len(keys),
        mean_samples=len(keys),
        slot=0,
        slots=1,
        after=Position(1, 2, ()),
    )


OBJECTIVES = {
    "flow": FlowConfig(shift=RootShift(base_tokens=16), weighting="cosmap"),
    "edm": EDMConfig(),
    "ddpm": DDPMConfig(prediction="v", zero_terminal_snr=True, min_snr_gamma=5.0),
}


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_a_pack_trains_as_its_samples_do_in_microbatches_of_their_own(objective):
    config, (shapes, pack) = tiny_config().model_copy(update={"objective": objective}), clips()
    packed = Bundle(config)
    for parameter in packed.dit.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    alone = copy.deepcopy(packed)
    found = losses(packed, config, pack, CPU)
    found.each.mean().backward()

    single, single_work, masks = [], [], []
    alone.dit.register_forward_pre_hook(lambda _, given: masks.append(given[3]))
    for i, shape in enumerate(shapes):
        batch = Microbatch(
            bucket=shape,
            length=100,
            keys=(pack.keys[i],),
            captions=(pack.captions[i],),
            passes=(2,),
            video_BCTHW=pack.videos[i][None],
            step=0,
            epoch=2,
            weight=0.25,
            step_samples=4,
            mean_samples=4,
            slot=0,
            slots=1,
            after=Position(1, 2, ()),
        )
        one = losses(alone, config, batch, CPU)
        (batch.weight * one.each.mean()).backward()
        single.append(one.each.detach())
        single_work.append(one.work)
        assert one.video_tokens == found.video_tokens[i : i + 1]
        assert torch.equal(one.normals, found.normals[i : i + 1])
    # A single caption is never padded, and kernels without masks serve.
    assert masks == [None] * len(shapes)
    torch.testing.assert_close(found.each.detach(), torch.cat(single), rtol=1e-5, atol=0)
    assert found.work == tuple(map(sum, zip(*single_work, strict=True)))
    errors = relative_errors(
        *({name: p.grad for name, p in trained.trained_weights().items()} for trained in (packed, alone))
    )
    assert {name: error for name, error in errors.items() if not error <= 1e-5} == {}


def test_a_pack_trains_in_bfloat16():
    config = tiny_config().model_copy(update={"dtype": "bfloat16"})
    full, half = (losses(Bundle(one), one, clips()[1], CPU).each for one in (tiny_config(), config))
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.03, atol=0)


def test_some_steps_on_packs_lower_the_loss():
    config, (_, pack) = tiny_config(), clips()
    bundle = Bundle(config)
    optimizer = torch.optim.AdamW(bundle.trained_weights().values(), lr=4e-3)
    curve = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = losses(bundle, config, pack, CPU).each.mean()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    assert curve[-1] < 0.7 * curve[0]
