"""Layers of a published encoder, the units in which its weights come and go."""

from collections.abc import Iterator

from torch import nn


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of an encoder of transformers: the entries of its outermost module lists, in order."""
    return [layer for layers in _lists(model) for layer in layers]


def _lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _lists(child)
