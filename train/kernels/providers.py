"""Who computes the operators: decided once, told once, and forced by one environment variable.

A provider takes the place of the references in `train.kernels.reference`; signatures are theirs. The first in
`PROVIDERS` that can work here is taken. Tensors that it does not serve, such as those on another device, go to the
references themselves, `train.kernels.eager`, which serve all.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from loader.errors import UsageError
from train.kernels.eager import EAGER
from train.kernels.kernel_set import Kernels

VARIABLE = "REELWEAVE_KERNELS"
_AS_IT_IS = nullcontext()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    """A way to compute the operators.

    Attributes:
        name: what `VARIABLE` calls it.
        missing: what it lacks here, in words; None where it can work.
        load: its operators; called only where nothing is missing.
        on_request: whether it is taken only where it is forced: of kernels that no GPU has run yet.
    """

    name: str
    missing: Callable[[], str | None]
    load: Callable[[], Kernels]
    on_request: bool = False


def choose(providers: Sequence[Provider], forced: str | None) -> tuple[Provider, str]:
    """The provider to use, and why.

    Args:
        providers: the best first; the last can always work.
        forced: the name of the only one to take; None or empty: the first that can work.

    Raises:
        UsageError: a name that nobody has, or of a provider that cannot work here.
    """
    if forced:
        named = {provider.name: provider for provider in providers}
        if forced not in named:
            raise UsageError(f"{VARIABLE}={forced} is not known; it may be {', '.join(named)}")
        if lack := named[forced].missing():
            raise UsageError(f"{VARIABLE}={forced} cannot work here: {lack}")
        return named[forced], f"{VARIABLE} says so"
    lacks: list[str] = []
    for provider in providers:
        lack = "only on request" if provider.on_request else provider.missing()
        if lack is None:
            return provider, "; ".join(lacks) or "the first choice"
        lacks.append(f"no {provider.name}: {lack}")
    raise AssertionError("the last provider can always work")


def chosen() -> tuple[Provider, str]:
    """The provider that is used here, and why."""
    return choose(PROVIDERS, os.environ.get(VARIABLE))


def kernels_for(x: torch.Tensor, numerics: str) -> Kernels:
    """The operators for these tokens."""
    kernels = _chosen()
    return kernels if kernels.serves(x, numerics) else EAGER


def traced(x: torch.Tensor) -> bool:
    """Whether only the registered operator will do: under `torch.compile`, and for tensors that are not plain data."""
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_meta
    return torch.compiler.is_compiling() or not plain


def without_autocast(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Where operators run: their types are those of what they are given."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _AS_IT_IS


@cache
def _chosen() -> Kernels:
    provider, reason = chosen()
    _log.info("kernels: %s (%s)", provider.name, reason)
    return provider.load()


def _library_lacks() -> str | None:
    from train.kernels.cuda import library

    return library.lacks()


def _library() -> Kernels:
    from train.kernels.cuda import library

    return library.load()


def _nvrtc_lacks() -> str | None:
    from train.kernels.cuda import nvrtc, sources

    return sources.lacks() or nvrtc.lacks()


def _nvrtc() -> Kernels:
    from train.kernels.cuda.nvrtc_provider import KERNELS

    return KERNELS


PROVIDERS = (
    Provider("library", _library_lacks, _library),
    Provider("nvrtc", _nvrtc_lacks, _nvrtc, on_request=True),
    Provider("eager", lambda: None, lambda: EAGER),
)
"""The best first. A library is somebody's own request: it is there only where it was built."""
