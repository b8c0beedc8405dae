"""In-place patching and unpatching of diffusers transformers."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.kernels.patch import blocks
from reelweave.train.kernels.patch.swap import KNOWN

FUSED = "uses_fused_operators"
"""Class attribute that marks blocks written with fused operators."""


@dataclass(frozen=True)
class PatchReport:
    """Result of `patch`; ``str`` describes it in sentences.

    Attributes:
        swapped: number of patched modules of each class.
        already: number of modules that were fused before, including built-in DiT blocks.
        norms: number of norms inside them that are now fused.
        left: unpatched modules by path, with the reason.
    """

    swapped: Counter[str]
    already: Counter[str]
    norms: int
    left: dict[str, str]

    def __str__(self) -> str:
        """Describe the result in sentences."""
        lines = [f"{n} {name} now use the fused operators" for name, n in self.swapped.items()]
        lines += [f"{self.norms} norms in all"] if self.swapped else []
        lines += [f"{n} {name} used them before" for name, n in self.already.items()]
        by_reason: dict[str, list[str]] = {}
        for path, reason in self.left.items():
            by_reason.setdefault(reason, []).append(path or "the model")
        lines += [f"left alone: {_some(paths)}: {reason}" for reason, paths in by_reason.items()]
        return "; ".join(lines)


def patch(model: nn.Module) -> PatchReport:
    """Make a model's blocks and last norm use fused operators; in place, with unchanged weights and names.

    A module with unknown code is left alone, and so is a block whose norms have hooks. Norms inside a block
    are read, but no longer called.

    Args:
        model: transformer of diffusers of a family with fused blocks, or a module that contains one, before sharding.

    Raises:
        UsageError: it contains none of these families, or diffusers is missing or incompatible.
    """
    swapped, already, norms, reasons = Counter[str](), Counter[str](), 0, dict[str, str]()
    for family in _families(model):
        for swap in family.SWAPS:
            strange = not swap.known
            for path, module in swap.modules(model):
                if isinstance(module, swap.fused):
                    already[swap.original.__name__] += 1
                else:
                    reason = f"its code is not that of {KNOWN}" if strange else swap.obstacle(module)
                    if reason is None:
                        module.__class__ = swap.fused
                        swapped[swap.original.__name__] += 1
                        norms += swap.norms(module)
                    else:
                        reasons[path] = reason
        for kind, reason in family.LEFT.items():
            reasons |= {path: reason for path, module in model.named_modules() if isinstance(module, kind)}
    if not (swapped or already or reasons):
        already = _ours(model)
    return PatchReport(swapped, already, norms, reasons)


def unpatch(model: nn.Module) -> int:
    """Undo `patch` in place, for all patched modules.

    Returns:
        Number of modules.

    Raises:
        UsageError: a module was sharded since; nothing is changed.
    """
    swapped = [
        (module, swap, path)
        for family in _families(model)
        for swap in family.SWAPS
        for path, module in swap.modules(model)
        if isinstance(module, swap.fused)
    ]
    for module, swap, path in swapped:
        if type(module) is not swap.fused:
            raise UsageError(
                f"{path} is a {type(module).__name__} since it was patched; unpatch before sharding"
            )
    for module, swap, _ in swapped:
        module.__class__ = swap.original
    return len(swapped)


def has_fused_blocks(model: nn.Module) -> bool:
    """Return True if there are fused blocks for a family of diffusers that a model contains."""
    return bool(_modules(model))


def _modules(model: nn.Module) -> list[str]:
    """Return the names of modules of fused blocks for a model, by the modules of its classes and bases."""
    sources = {base.__module__ for module in model.modules() for base in type(module).__mro__}
    return [name for name in _names() if f"diffusers.models.transformers.{name}" in sources]


@cache
def _names() -> tuple[str, ...]:
    """Return the names of all modules of fused blocks."""
    return tuple(sorted(module.name for module in iter_modules(blocks.__path__)))


def _families(model: nn.Module) -> Iterator[ModuleType]:
    """Yield the modules of fused blocks for a model.

    Raises:
        UsageError: diffusers lacks classes of such a family.
    """
    for name in _modules(model):
        try:
            yield import_module(f"{blocks.__name__}.{name}")
        except (AttributeError, ImportError) as error:
            raise UsageError(f"patch knows {KNOWN}, and the one here differs: {error}") from error


def _ours(model: nn.Module) -> Counter[str]:
    """Count blocks of our own models, which declare `FUSED`.

    Raises:
        UsageError: there are none.
    """
    blocks = Counter(type(module).__name__ for module in model.modules() if getattr(module, FUSED, False))
    if blocks:
        return blocks
    try:
        import_module("diffusers")
    except ImportError as error:
        raise UsageError("patch changes models of diffusers: pip install 'reelweave[diffusers]'") from error
    raise UsageError(
        f"{type(model).__name__} has no block that patch knows; it may be a transformer of diffusers, of"
        f" {' or '.join(_names())}"
    )


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
