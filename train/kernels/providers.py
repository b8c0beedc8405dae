"""Selection of the operators' provider: once per process, logged once, forced by an environment variable.

A provider has the operators of `Kernels`. The first in `PROVIDERS` that is usable, and right on the GPU here, is
selected. What it does not support, such as tensors on another device, is computed by the reference that an operator
passes to `run`. Without kernels, `torch.compile` traces the reference and fuses it with what is around.
"""

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.train.kernels.kernel_set import REFERENCES, Kernels

VARIABLE = "REELWEAVE_KERNELS"
_AS_IT_IS = nullcontext()
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Provider:
    """Implementation of the operators.

    Attributes:
        name: value of `VARIABLE` that selects it.
        missing: returns a missing requirement in words; None if it is usable.
        load: loads the operators, None for the references alone; called only if nothing is missing.
        wrong: returns what is wrong with the loaded operators on the GPUs here, in words; None if they are right.
    """

    name: str
    missing: Callable[[], str | None]
    load: Callable[[], Kernels | None]
    wrong: Callable[[], str | None] = lambda: None


class LoadedProvider(NamedTuple):
    """Kernel provider in use, with its operators.

    Attributes:
        provider: the provider.
        kernels: its operators; None for the references.
        reason: reason why it was chosen, in words.
    """

    provider: Provider
    kernels: Kernels | None
    reason: str


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
        lack = provider.missing()
        if lack is None:
            return provider, "; ".join(lacks) or "the first choice"
        lacks.append(f"no {provider.name}: {lack}")
    raise AssertionError("the last provider can always work")


def load(providers: Sequence[Provider], forced: str | None) -> LoadedProvider:
    """Load the provider to use, and log which it is; one whose operators are wrong here is left out with a warning.

    Args:
        providers: candidates of `choose`.
        forced: forced provider of `choose`.

    Raises:
        UsageError: as `choose`.
        RunError: a forced provider does not load, or is wrong.
    """
    candidates = list(providers)
    while True:
        provider, reason = choose(candidates, forced)
        try:
            kernels = provider.load()
            problem = provider.wrong()
        except (RunError, OSError) as error:
            problem = first_line(error)
        if problem is None:
            _log.info("kernels: %s (%s)", provider.name, reason)
            return LoadedProvider(provider, kernels, reason)
        if forced:
            raise RunError(f"{VARIABLE}={forced} cannot be used: {problem}")
        _log.warning("kernels: %s is not used: %s", provider.name, problem)
        candidates.remove(provider)


def register(
    operator: str, reference: Callable[..., tuple[torch.Tensor, ...]], index: int
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Register the reference of an operator, and return `run` with these arguments."""
    REFERENCES[operator] = reference
    return partial(run, operator, reference, index)


def run(
    operator: str,
    reference: Callable[..., tuple[torch.Tensor, ...]],
    index: int,
    *arguments: Any,
) -> tuple[torch.Tensor, ...]:
    """Run an operator of the provider in use, or its reference where that has no kernel; without autocast.

    Args:
        operator: name in `REFERENCES`.
        reference: the same in plain PyTorch, for all tensors.
        index: index of the argument whose device and dtype decide.
        arguments: arguments of both; the last one is the rounding mode.
    """
    x, kernels = arguments[index], choose_provider().kernels
    if kernels is not None and kernels.serves(x, arguments[-1]):
        outputs: tuple[Any, ...] | None = kernels.operators[operator](*arguments)
        if outputs is not None:
            return outputs
    with _without_autocast(x):
        return reference(*arguments)


def checked_by_kernels(x: torch.Tensor, numerics: str) -> bool:
    """Return True if kernels will check the arguments, which they do once for each layout.

    Args:
        x: tokens, whose type, device and dtype decide.
        numerics: rounding mode.
    """
    if torch.compiler.is_compiling() or type(x) not in _PLAIN:
        return False
    kernels = choose_provider().kernels
    return kernels is not None and kernels.checks and kernels.serves(x, numerics)


def call(
    operator: Callable[..., Any],
    function: type[torch.autograd.Function],
    reference: Callable[..., tuple[torch.Tensor, ...]],
    x: torch.Tensor,
    tensors: Sequence[torch.Tensor | None],
    flags: Sequence[Any],
    cu_seqlens: torch.Tensor | None = None,
) -> Any:
    """Call an operator in the form that serves best, and return its outputs as a tuple.

    Args:
        operator: registered operator, which `torch.compile` does not look into. For tensor subclasses and for
            kernels in a compiled graph. There for packed tokens, too, whose groups the reference reads.
        function: autograd function, which takes less of the host's time, the less the fewer arguments: flags are one.
        reference: the same in plain PyTorch, which a compiler without kernels differentiates and fuses.
        x: tokens, whose type decides.
        tensors: first arguments.
        flags: further arguments.
        cu_seqlens: offsets of packed tokens.
    """
    compiled = torch.compiler.is_compiling()
    plain = type(x) in _PLAIN and not x.is_meta
    if not plain or (compiled and (cu_seqlens is not None or _has_kernels())):
        return operator(*tensors, *flags)
    if compiled:
        with _without_autocast(x):
            return reference(*tensors, *flags)
    return function.apply(*tensors, flags)


def _without_autocast(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Disable autocast for operators, whose dtypes follow their inputs."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _AS_IT_IS


@cache
def choose_provider() -> LoadedProvider:
    """Return the provider in use here; loaded once per process.

    Raises:
        UsageError: the environment names one that is unknown or not usable here.
        RunError: the environment names one that does not load, or is wrong.
    """
    return load(PROVIDERS, os.environ.get(VARIABLE))


def _has_kernels() -> bool:
    return choose_provider().kernels is not None


# As torch.compiler.assume_constant_result does, which imports the compiler: two seconds of a process, for nothing.
_has_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _nvrtc_lacks() -> str | None:
    from reelweave.train.kernels.cuda import nvrtc, sources

    return sources.lacks() or nvrtc.lacks()


def _nvrtc() -> Kernels:
    from reelweave.train.kernels.cuda.nvrtc_provider import KERNELS

    return KERNELS


def _nvrtc_wrong() -> str | None:
    from reelweave.train.kernels.cuda import start_check

    return start_check.wrong()


PROVIDERS = (
    Provider("nvrtc", _nvrtc_lacks, _nvrtc, _nvrtc_wrong),
    Provider("eager", lambda: None, lambda: None),
)
"""Providers in order of preference."""
