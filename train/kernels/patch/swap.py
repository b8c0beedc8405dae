"""Class swap: replacement of a diffusers module's class, and its conditions.

A swap assigns the module a subclass of its own class, with another ``forward`` and the same name, and adds
nothing to the module. Parameters and their names, hooks on it, ``train()``, checkpointing, deep copies, pickles
and isinstance thus stay as before. Lookups of classes by name (``_no_split_modules``, FSDP wrapping policies)
still work. `torch.compile` compiles blocks of one class once, and `fully_shard`, which adds a class of its
own, can follow. A ``forward`` bound to each module could not be pickled and would make every block a
reference cycle; a wrapper would rename parameters.
"""

import hashlib
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

KNOWN = "diffusers 0.38 to 0.42"
"""Supported versions, whose code the digests identify."""


@dataclass(frozen=True)
class Swap:
    """A diffusers class with its fused subclass.

    Attributes:
        original: class of diffusers.
        fused: subclass with fused operators.
        bypassed: required classes of inner modules, by path, that the subclass reads instead of calling.
        digest: expected `digest` of their code.
        called: functions whose work the subclass does, too.
        within: classes of modules that own such a module; empty: it is swapped wherever it is.
        older: digests of the code in older supported versions, with the same results.
    """

    original: type[nn.Module]
    fused: type[nn.Module]
    bypassed: Mapping[str, tuple[type[nn.Module], ...]]
    digest: str
    called: tuple[Callable[..., Any], ...] = ()
    within: tuple[type[nn.Module], ...] = ()
    older: tuple[str, ...] = ()

    def modules(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Yield the modules of `original` and its subclasses that the swap is about, with their paths."""
        for path, module in model.named_modules():
            owner = model.get_submodule(path.rpartition(".")[0])
            if isinstance(module, self.original) and (not self.within or isinstance(owner, self.within)):
                yield path, module

    @property
    def known(self) -> bool:
        """True if the installed code is that of a supported version."""
        return self.found in (self.digest, *self.older)

    @property
    def found(self) -> str:
        """`digest` of the installed code: the class and its bypassed modules."""
        inside = {kind for kinds in self.bypassed.values() for kind in kinds}
        of_diffusers = sorted(
            (kind for kind in inside if kind.__module__.startswith("diffusers.")),
            key=lambda kind: kind.__name__,
        )
        return digest([*(kind.forward for kind in (self.original, *of_diffusers)), *self.called])

    def obstacle(self, module: nn.Module) -> str | None:
        """Return the reason why a module of this class or a subclass must stay unpatched; None without one."""
        if type(module) is not self.original:
            return f"it is a {type(module).__name__} (patch before it is sharded or changed otherwise)"
        if "forward" in vars(module):
            return "its forward is replaced already (patch before hooks of accelerate or diffusers are added)"
        for path, kinds in self.bypassed.items():
            try:
                inner = module.get_submodule(path)
            except AttributeError:
                return f"it has no {path}"
            if type(inner) not in kinds:
                return f"its {path} is a {type(inner).__name__}"
            if _hooked(inner):
                return f"its {path} has hooks, which would no longer be called"
        return None

    def norms(self, module: nn.Module) -> int:
        """Return the number of norms that the subclass fuses; an adaptive norm has no eps, the one inside has."""
        return sum(hasattr(module.get_submodule(path), "eps") for path in self.bypassed)


def adaptive(path: str, kind: type[nn.Module]) -> dict[str, tuple[type[nn.Module], ...]]:
    """Return an adaptive norm of diffusers and its inner layer norm, for `Swap.bypassed`."""
    return {path: (kind,), f"{path}.norm": (nn.LayerNorm,)}


def digest(functions: Sequence[Callable[..., Any]]) -> str:
    """Hash the source of functions, in order; empty if one has no source."""
    hasher = hashlib.sha256()
    for function in functions:
        code = getattr(function, "__code__", None)
        # inspect.getsource would unwrap a decorated function, and look for its module among all that are imported.
        lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :] if code else []
        if not lines:
            return ""
        hasher.update("".join(inspect.getblock(lines)).encode())
    return hasher.hexdigest()


def _hooked(module: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, name) for name in names)
