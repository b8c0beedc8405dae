"""Layers of a model that adapters may be on, and the ends of names that select some of them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from reelweave.loader.errors import UsageError


class Layers(NamedTuple):
    """Layers of a model that has no adapters.

    Attributes:
        sizes: linear layers and convolutions by their name in diffusers, each with its number of outputs and inputs.
        modules: names of all modules.
    """

    sizes: Mapping[str, tuple[int, int]]
    modules: tuple[str, ...]

    def selected(self, targets: Iterable[str]) -> set[str]:
        """Return the modules that PEFT selects by ``target_modules``: those whose names end in one, at a dot."""
        ends = tuple(f".{target}" for target in targets)
        return {name for name in self.modules if f".{name}".endswith(ends)}

    def targets(self, chosen: set[str]) -> tuple[str, ...]:
        """Return ends of names that select exactly some layers, short ones where they do.

        Raises:
            UsageError: a layer's whole name is the end of another one's.
        """
        targets: list[str] = []
        named: set[str] = set()
        for name in sorted(chosen):
            if name in named:
                continue
            parts = name.split(".")
            ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
            target = next((end for end in ends if self.selected([end]) <= chosen), None)
            if target is None:
                others = min(self.selected([name]) - chosen)
                raise UsageError(
                    f"adapters of {name} cannot be named without those of {others} (lora.targets)"
                )
            targets.append(target)
            named |= self.selected([target])
        return tuple(targets)


def layers_of(model: Any) -> Layers:
    """Return the layers of a model of diffusers, without those of adapters that it may have."""
    modules = {
        name.removesuffix(".base_layer"): module
        for name, module in model.named_modules()
        if name and ".lora_" not in name
    }
    sizes = {
        name: (len(layer.weight), layer.weight.shape[1])
        for name, layer in modules.items()
        if _adaptable(layer)
    }
    return Layers(sizes, tuple(modules))


def _adaptable(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)
