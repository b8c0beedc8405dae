"""The host side in Python over emulated kernels, against float64."""

from dataclasses import replace

import pytest
import torch

from reelweave.loader.errors import UsageError
from reelweave.train.kernels import providers
from reelweave.train.kernels.checks import check, check_qk
from reelweave.train.kernels.checks.accuracy import BF16, F16, F32
from reelweave.train.kernels.checks.check import Case
from reelweave.train.kernels.checks.check_qk import PairCase
from reelweave.train.kernels.cuda import host
from reelweave.train.kernels.eager import with_references
from reelweave.train.kernels.gate_norm_modulate import gate_residual_norm_modulate
from reelweave.train.kernels.norm_modulate import layer_norm_modulate
from reelweave.train.kernels.norm_modulate import reference as norm_modulate
from reelweave.train.kernels.qk_norm import qk_norm as qk_norm_operator
from reelweave.train.kernels.qk_norm import reference as qk_norm
from tests.thorough import beyond, but
from tests.train.kernels.emulated import EmulatedLauncher

pytestmark = pytest.mark.toolchain

CPU = torch.device("cpu")
SMALL = [*check.cases([(9, 136), (5, 67)])]


def kernels_over(launcher):
    return host.kernels(launcher, lambda _x, _numerics: True)


@pytest.fixture(scope="module")
def launcher(emulated_kernels):
    return EmulatedLauncher(emulated_kernels)


@pytest.mark.parametrize("form", but(("frame", "packed"), check.FORMS))
def test_every_form_type_and_layout_agrees_with_float64(launcher, form):
    wanted = [case for case in SMALL if case.form == form]
    assert list(check.failures(kernels_over(launcher), CPU, wanted)) == []


@pytest.mark.parametrize(
    "case",
    beyond(
        1,
        [
            Case(False, "frame", 37, 1128, BF16, BF16, affine=True, layout="sliced"),
            Case(True, "packed", 2, 8200, F32, F32),
            Case(True, "sample", 1, 760, F16, F16, affine=True),
        ],
    ),
    ids=str,
)
def test_odd_shapes(launcher, case):
    assert check.worst(kernels_over(launcher), CPU, case) <= 1


def test_a_ring_that_does_not_fit_takes_the_tiled_path(launcher):
    case = Case(True, "sample", 3, 256, F32, F32)
    assert check.worst(kernels_over(replace(launcher, limit=1 << 10)), CPU, case) <= 1


@pytest.mark.parametrize("clusters", [False, True])
def test_wide_rows_take_clusters_where_there_are_any(launcher, clusters):
    recorder = Recorder(replace(launcher, clustered=clusters))
    assert check.worst(kernels_over(recorder), CPU, Case(False, "sample", 3, 8200)) <= 1
    names = {kernel for kernel, _ in recorder.launched if "_backward_" in kernel}
    assert {name.endswith("_c4") for name in names} == {clusters}
    assert {"tiled" in name for name in names} == {not clusters}


@pytest.mark.parametrize("gated", [False, True])
def test_the_d_tile_reduction_serves_tokens_and_nothing_else(launcher, gated):
    recorder = Recorder(launcher)
    kernels = host.d_tile(recorder, lambda _x, _numerics: True)
    assert check.worst(kernels, CPU, Case(gated, "sample", 3, 256)) <= 1
    names = [kernel for kernel, _ in recorder.launched]
    assert all("tiled" in name or name.startswith("reduce") for name in names)
    assert not kernels.serves(torch.zeros(1, 2, 3, 8), "fp32")


@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_any_number_of_blocks_gives_the_sums(launcher, blocks):
    kernels = kernels_over(replace(launcher, blocks=blocks))
    wanted = [Case(True, "packed", 23, 64, affine=True), Case(True, "packed", 23, 67, F32, F32)]
    assert list(check.failures(kernels, CPU, wanted)) == []


def test_the_check_sees_what_is_wrong(launcher):
    kernels = kernels_over(launcher)

    def off_by_a_bit(*arguments):
        y, mean, rstd = kernels.norm_modulate(*arguments)
        return y * (1 + 2**-6), mean, rstd

    def wrong_statistics(*arguments):
        y, mean, rstd = kernels.norm_modulate(*arguments)
        return y, mean + 0.01, rstd

    def swapped(*arguments):
        dx, dscale, dshift, *others = kernels.norm_modulate_backward(*arguments)
        return dx, dshift, dscale, *others

    count = iter(range(100))

    def different(*arguments):
        dx, *others = kernels.norm_modulate_backward(*arguments)
        return dx * (1 + 2**-7 * next(count)), *others

    def wrong_norms(*arguments):
        q, k, rstd_q, rstd_k = kernels.qk_norm(*arguments)
        return q, k, rstd_q, rstd_k * (1 + 2**-7)

    def of_queries_for_keys(*arguments):
        dq, dk, dweight_q, _ = kernels.qk_norm_backward(*arguments)
        return dq, dk, dweight_q, dweight_q

    def turned_the_wrong_way(*arguments):
        tensors, (cos, sin), flags = arguments[:4], arguments[4:6], arguments[6:]
        return kernels.qk_norm(*tensors, cos, -sin, *flags)

    case = Case(False, "sample", 5, 64)
    pair = PairCase((5, 5, 3, 3, 64), BF16, F32, across=False, turn="half")
    for broken, seen_by in (
        (kernels.replace(norm_modulate=off_by_a_bit), case),
        (kernels.replace(norm_modulate=wrong_statistics), case),
        (kernels.replace(norm_modulate_backward=swapped), case),
        (kernels.replace(norm_modulate_backward=different), case),
        (kernels.replace(qk_norm=wrong_norms), pair),
        (kernels.replace(qk_norm=turned_the_wrong_way), pair),
        (kernels.replace(qk_norm_backward=of_queries_for_keys), pair),
    ):
        assert list(check.failures(kernels, CPU, [seen_by])) == []
        assert len(list(check.failures(broken, CPU, [seen_by]))) == 1


PAIRS = [(9, 9, 3, 3, 64), (5, 3, 2, 4, 80), (3, 3, 2, 1, 256), (7, 7, 3, 2, 20), (4, 0, 2, 2, 64)]


def test_queries_and_keys_of_every_kind_agree_with_float64(launcher):
    wanted = list(check_qk.cases(PAIRS))[::4]
    assert list(check.failures(kernels_over(launcher), CPU, wanted)) == []


class Recorder(EmulatedLauncher):
    """Keeps what was launched."""

    def __init__(self, launcher):
        super().__init__(launcher.libraries, clustered=launcher.clustered)
        object.__setattr__(self, "launched", [])

    def run(self, kernel, device, args, grid, block, shared_bytes=0):
        self.launched.append((kernel, args))
        super().run(kernel, device, args, grid, block, shared_bytes)


def pair_of(qkv_BL3Hd):
    """Queries, keys and what else the operator takes: weights of a head, no rotation."""
    q, k, _ = qkv_BL3Hd.unbind(2)
    weight = torch.ones(qkv_BL3Hd.shape[-1])
    return q, k, weight, weight, None, None, 1e-6, False, False, "fp32"


def test_views_are_read_where_they_lie(launcher):
    recorder = Recorder(launcher)
    inputs = q, k, *_ = pair_of(torch.randn(2, 5, 3, 4, 32))
    dq, dk = torch.randn(2, 4, 5, 32).transpose(1, 2), torch.randn(1, 1, 1, 32).expand(2, 5, 4, 32)
    kernels = kernels_over(recorder)
    *_, rstd_q, rstd_k = kernels.qk_norm(*inputs)
    kernels.qk_norm_backward(dq, dk, q, k, rstd_q, rstd_k, *inputs[2:])
    (_, forward), (_, backward), _ = recorder.launched
    for args in (forward, backward):
        assert [side.x for side in args.side] == [q.data_ptr(), k.data_ptr()]
    assert [side.dy for side in backward.side] == [dq.data_ptr(), dk.data_ptr()]


@pytest.mark.parametrize(
    ("qkv", "launches"),
    [
        (torch.randn(2, 5, 3, 4, 64)[..., ::2], 1),
        (torch.randn(2, 5, 3, 4, 33)[..., :32], 0),
        # One token: how far the next one would be does not matter.
        (torch.randn(1, 1, 3 * 4 * 32 + 1)[..., :-1].view(1, 1, 3, 4, 32), 1),
    ],
    ids=["channels apart are copied", "unaligned heads go to the reference", "one token of any stride"],
)
def test_every_layout_is_right(launcher, qkv, launches):
    recorder = Recorder(launcher)
    found = with_references(kernels_over(recorder)).qk_norm(*pair_of(qkv))
    assert len(recorder.launched) == launches
    wanted = qk_norm.forward(*pair_of(qkv))
    assert all(torch.allclose(one, other, rtol=1e-5) for one, other in zip(found, wanted, strict=True))


def test_the_reference_may_take_over_between_the_passes(launcher):
    """Unaligned gradients: the forward ran on the kernels, and its statistics serve the reference."""
    kernels = with_references(kernels_over(launcher))
    inputs = q, k, *_ = pair_of(torch.randn(2, 5, 3, 4, 32))
    _, _, rstd_q, rstd_k = kernels.qk_norm(*inputs)
    dq, dk = (torch.randn(2, 5, 4, 32) for _ in range(2))
    apart = torch.empty(2, 5, 4, 33)[..., :32].copy_(dq)
    expected = kernels.qk_norm_backward(dq, dk, q, k, rstd_q, rstd_k, *inputs[2:])
    assert kernels_over(launcher).qk_norm_backward(apart, dk, q, k, rstd_q, rstd_k, *inputs[2:]) is None
    found = kernels.qk_norm_backward(apart, dk, q, k, rstd_q, rstd_k, *inputs[2:])
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, expected, strict=True))


def test_tensors_of_two_devices_are_refused(launcher):
    x, row = torch.zeros(1, 2, 8), torch.zeros(1, 8, device="meta")
    with pytest.raises(UsageError, match="one device"):
        kernels_over(launcher).norm_modulate(x, row, row, None, None, None, 1e-6, False, "fp32")
    q, k = torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8, device="meta")
    with pytest.raises(UsageError, match="one device"):
        kernels_over(launcher).qk_norm(q, k, None, None, None, None, 1e-6, False, False, "fp32")


class Counting(EmulatedLauncher):
    """Counts what is prepared."""

    def __init__(self, launcher):
        super().__init__(launcher.libraries)
        object.__setattr__(self, "prepared", [])

    def prepare(self, device, launches):
        self.prepared.append([launch.kernel for launch in launches])
        return super().prepare(device, launches)


def test_a_layout_is_planned_once(launcher):
    counting = Counting(launcher)
    kernels = kernels_over(counting)

    def plans(x, row, eps=1e-6):
        outputs = kernels.norm_modulate(x, row, row, None, None, None, eps, False, "fp32")
        wanted = norm_modulate.forward(x, row, row, None, None, None, eps, False, "fp32")
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(outputs, wanted, strict=True))
        return len(counting.prepared)

    row = torch.randn(1, 64)
    assert [plans(torch.randn(1, 5, 64), row) for _ in range(3)] == [1] * 3
    assert plans(torch.randn(1, 6, 64), row) == 2
    assert plans(torch.randn(1, 5, 128)[..., 64:], row) == 3
    assert plans(torch.randn(1, 5, 64), row, eps=1e-5) == 4
    unaligned = torch.randn(5 * 64 + 1)[1:].view(1, 5, 64)
    assert [plans(unaligned, row), plans(torch.randn(1, 5, 64), row)] == [5, 5]
    assert "tiled" in counting.prepared[-1][0]


def test_plans_do_not_grow_without_end(launcher, monkeypatch):
    monkeypatch.setattr("reelweave.train.kernels.cuda.launcher.MAX_PLANS", 2)
    counting, row = Counting(launcher), torch.randn(1, 8)
    kernels = kernels_over(counting)
    for length in (1, 2, 3, 3, 1):
        x = torch.randn(1, length, 8)
        kernels.norm_modulate(x, row, row, None, None, None, 1e-6, False, "fp32")
    assert len(counting.prepared) == 4


def test_kernels_check_what_a_plan_is_made_for(launcher):
    kernels, row = kernels_over(launcher), torch.zeros(1, 8)
    with pytest.raises(UsageError, match="shift must have shape and type of scale"):
        kernels.norm_modulate(torch.zeros(1, 2, 8), row, row.half(), None, None, None, 1e-6, False, "fp32")
    x = torch.zeros(1, 2, 8)
    with pytest.raises(UsageError, match="y must have shape and type of residual"):
        kernels.gate_norm_modulate(x, x[:, :1], row, row, row, None, None, None, 1e-6, False, "fp32")
    heads = torch.zeros(1, 2, 1, 8)
    with pytest.raises(UsageError, match="one rotation cannot turn 2 queries and 1 keys"):
        angles = torch.zeros(2, 4)
        kernels.qk_norm(heads, heads[:, :1], None, None, angles, angles, 1e-6, False, False, "fp32")


@pytest.mark.parametrize("operator", ["norm", "gated", "pair"])
def test_models_refuse_the_same_with_kernels_and_without(launcher, monkeypatch, operator):
    loaded = providers.LoadedProvider(providers.PROVIDERS[-1], kernels_over(launcher), "")
    x, row, heads = torch.zeros(1, 2, 8), torch.zeros(1, 4), torch.zeros(1, 2, 3, 8)

    def call():
        if operator == "norm":
            return layer_norm_modulate(x, row, row)
        if operator == "gated":
            return gate_residual_norm_modulate(x, x, row, row, row)
        return qk_norm_operator(heads, heads, torch.ones(16), torch.ones(8))

    messages = []
    for chosen in (providers.choose_provider, lambda: loaded):
        monkeypatch.setattr(providers, "choose_provider", chosen)
        for _ in range(2):  # a plan that could not be made is not kept
            with pytest.raises(UsageError) as refused:
                call()
            messages.append(str(refused.value))
    assert len(set(messages)) == 1


def test_angles_that_ask_for_a_gradient_are_refused_by_every_call(launcher, monkeypatch):
    loaded = providers.LoadedProvider(providers.PROVIDERS[-1], kernels_over(launcher), "")
    monkeypatch.setattr(providers, "choose_provider", lambda: loaded)
    heads, angles = torch.randn(1, 2, 1, 8), torch.zeros(2, 4)
    qk_norm_operator(heads, heads, rotation=(angles, angles))
    with pytest.raises(UsageError, match="asks for a gradient"):
        qk_norm_operator(heads, heads, rotation=(angles, angles.requires_grad_()))
