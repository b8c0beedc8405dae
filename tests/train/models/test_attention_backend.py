"""The implementation of attention that a run's processes take first."""

import sys

import pytest
import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend, _registry

from reelweave.loader.errors import UsageError
from reelweave.train.config.model import DiTConfig
from reelweave.train.models.attention.backend import attention_backend, first, prefer_backend

MODEL = DiTConfig(hidden=128, heads=2)


def order():
    return [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION), ("auto", None)],
)
def test_one_is_first_within_the_context_and_every_other_stays_behind_it(backend, expected):
    before, allowed = order(), attention._cur_sdpa_kernel_backends()
    with first(backend):
        assert order()[0] == (expected or before[0])
        assert set(order()) == set(before)
        assert {*allowed} - {*attention._cur_sdpa_kernel_backends()} <= {SDPBackend.OVERRIDEABLE}
    assert order() == before
    assert attention._cur_sdpa_kernel_backends() == allowed


def test_a_package_replaces_flash_attention_within_the_context_alone(monkeypatch):
    class Handle:
        def remove(self):
            removed.append(True)

    removed: list[bool] = []
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA3", lambda: Handle())
    with pytest.raises(KeyError), first("flash3"):
        assert order()[0] == SDPBackend.FLASH_ATTENTION
        assert attention.current_flash_attention_impl() == "FA3"
        raise KeyError
    assert attention.current_flash_attention_impl() is None
    assert removed == [True]


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    with (
        pytest.raises(UsageError, match=r"parallel.attention=flash3 .*install FlashAttention 3"),
        first("flash3"),
    ):
        pass


def test_a_processor_has_one_implementation_whatever_is_wanted():
    before = order()
    with attention_backend("flash4", MODEL, "float32", torch.device("cpu")):
        assert order() == before


def test_one_is_tried_before_it_is_taken():
    q_BHLD = torch.zeros(1, 1, 16, 8, requires_grad=True)
    with prefer_backend("flash", q_BHLD, "another") as name:
        assert name == "FlashAttention 2"
    refused = pytest.raises(
        UsageError, match=r"attention=cudnn does not serve heads of 8 in torch.float32 here .*another"
    )
    with refused, prefer_backend("cudnn", q_BHLD, "another"):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_run_on_a_gpu_ends_where_a_sample_takes_another():
    with pytest.raises(UsageError), attention_backend("cudnn", MODEL, "float32", torch.device("cuda")):
        pass
    with attention_backend("cudnn", MODEL, "float32", torch.device("cuda"), required=False):
        pass
