"""What takes the place of a module of diffusers, and when it may.

A swap gives the module another class: a subclass of its own, with another ``forward`` and the same name. Nothing is
put into the module or around it. So parameters and their names, hooks on it, ``train()``, checkpointing, deep copies,
pickles and isinstance are as before; what knows classes by name (``_no_split_modules``, wrapping policies of FSDP)
finds it, `torch.compile` compiles blocks of one class once, and `fully_shard`, which adds a class of its own, can come
after. A ``forward`` bound to each module could not be pickled and would make every block a reference cycle; a wrapper
would rename parameters.
"""

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

KNOWN = "diffusers 0.38 to 0.42"
"""Whose code the digests are of."""


@dataclass(frozen=True)
class Swap:
    """One class of diffusers and ours for it.

    Attributes:
        original: theirs.
        fused: ours, derived from it.
        bypassed: modules inside, by their path, that ours does not call but reads; and the class each must have.
        digest: `digest` of their code.
    """

    original: type[nn.Module]
    fused: type[nn.Module]
    bypassed: Mapping[str, tuple[type[nn.Module], ...]]
    digest: str

    @property
    def found(self) -> str:
        """`digest` of the code that is installed: of the class and of what is bypassed."""
        inside = {kind for kinds in self.bypassed.values() for kind in kinds}
        of_diffusers = sorted(
            (kind for kind in inside if kind.__module__.startswith("diffusers.")),
            key=lambda kind: kind.__name__,
        )
        return digest([self.original, *of_diffusers])

    def obstacle(self, module: nn.Module) -> str | None:
        """Why this module, of the original class or one derived from it, must stay as it is; None: it need not."""
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
        """How many norms ours fuses with what surrounds them."""
        return sum(isinstance(module.get_submodule(path), nn.LayerNorm) for path in self.bypassed)


def adaptive(path: str, kind: type[nn.Module]) -> dict[str, tuple[type[nn.Module], ...]]:
    """An adaptive norm of diffusers and the layer norm inside it, as `Swap.bypassed` wants them."""
    return {path: (kind,), f"{path}.norm": (nn.LayerNorm,)}


def digest(classes: list[type[nn.Module]]) -> str:
    """Of the source of their ``forward``, in this order; empty where one has none."""
    whole = hashlib.sha256()
    for kind in classes:
        forward: Any = kind.forward
        try:
            # Of the code that runs: given the function, inspect looks through wrappers, at what they wrap.
            whole.update(inspect.getsource(forward.__code__).encode())
        except (AttributeError, OSError, TypeError):
            return ""
    return whole.hexdigest()


def _hooked(module: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in vars(module) or any(getattr(module, name) for name in names)
