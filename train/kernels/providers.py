"""Selection of the operators' provider: once per process, logged once, forced by an environment variable.

A provider has the operators of `Kernels`. The first usable one in `PROVIDERS` is selected. What it does not support,
such as tensors on another device, is computed by the reference that an operator passes to `run`.
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
from train.kernels.kernel_set import Kernels

VARIABLE = "REELWEAVE_KERNELS"
_AS_IT_IS = nullcontext()
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    """Implementation of the operators.

    Attributes:
        name: value of `VARIABLE` that selects it.
        missing: returns a missing requirement in words; None if it is usable.
        load: loads the operators, None for the references alone; called only if nothing is missing.
        on_request: True if it is only used when forced: kernels that no GPU has run yet.
    """

    name: str
    missing: Callable[[], str | None]
    load: Callable[[], Kernels | None]
    on_request: bool = False


def choose(providers: Sequence[Provider], forced: str | None) -> tuple[Provider, str]:
    """Return the provider to use, and the reason.

    Args:
        providers: providers in order of preference; the last is always usable.
        forced: name of the only provider to consider; None or empty: the first usable one.

    Raises:
        UsageError: the name is unknown, or the provider is not usable here.
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
    """Return the provider in use here, and the reason."""
    return choose(PROVIDERS, os.environ.get(VARIABLE))


def run(
    operator: str,
    x: torch.Tensor,
    reference: Callable[..., tuple[torch.Tensor, ...]],
    arguments: Sequence[Any],
) -> tuple[torch.Tensor, ...]:
    """Run an operator of the provider in use, or its reference where that has no kernel; without autocast.

    Args:
        operator: field of `Kernels`.
        x: tokens, whose device and dtype decide.
        reference: the same in plain PyTorch, for all tensors.
        arguments: arguments of both; the last one is the rounding mode.
    """
    kernels, found = _chosen(), None
    with _without_autocast(x):
        if kernels is not None and kernels.serves(x, arguments[-1]):
            found = getattr(kernels, operator)(*arguments)
        return reference(*arguments) if found is None else tuple(found)


def traced(x: torch.Tensor) -> bool:
    """Return True if the registered operator is required: under `torch.compile` and for tensor subclasses."""
    plain = type(x) in (torch.Tensor, torch.nn.Parameter) and not x.is_meta
    return torch.compiler.is_compiling() or not plain


def _without_autocast(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Disable autocast for operators, whose dtypes follow their inputs."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _AS_IT_IS


@cache
def _chosen() -> Kernels | None:
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
    Provider("eager", lambda: None, lambda: None),
)
"""Providers in order of preference. A library exists only where a user built it."""
