"""Initialization of a changed architecture from published weights.

diffusers numbers blocks in execution order. Added compression blocks are the last of an encoder and the first
of a decoder. Later decoder blocks thus have other numbers than before, with the same function.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from reelweave.loader.errors import UsageError
from reelweave.train.models.published.vae_base import PublishedName, PublishedVae, VaeSettings

_KEY = "model.architecture"


@dataclass(frozen=True)
class Initialization:
    """Origins of an architecture's weights, by name.

    Attributes:
        taken: weights loaded from the published VAE.
        new: weights drawn by seed.
        left_over: published weights that are unused.
    """

    taken: tuple[str, ...]
    new: tuple[str, ...]
    left_over: tuple[str, ...]


def check_settings(published_vae: PublishedVae, changed: VaeSettings) -> dict[str, Any]:
    """Check changed settings and return them without diffusers' own annotations.

    Args:
        published_vae: the published VAE.
        changed: settings of the architecture; missing ones are as published.

    Raises:
        UsageError: it is of another class, has an unknown key, or changes a fixed setting.
    """
    kind, published = type(published_vae.vae), published_vae.vae.config
    family = kind.__name__
    if changed.get("_class_name", family) != family:
        raise UsageError(
            f"{_KEY} is a {changed['_class_name']}, and model.name a {family}: they must be of one class"
        )
    parameters = set(inspect.signature(kind.__init__).parameters) - {"self"}
    changes = {name: value for name, value in changed.items() if not name.startswith("_")}
    for name in changes.keys() - parameters - published.keys():
        close = get_close_matches(name, parameters, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"{_KEY}: {family} knows no {name}{meant}")
    merged = {name: value for name, value in published.items() if name in parameters} | changes
    for name in published_vae.fixed:
        if _plain(merged.get(name)) != _plain(published.get(name)):
            raise UsageError(
                f"{_KEY} changes {name}, by which blocks of a {family} would no longer do what their published weights"
                f" were trained for; leave it at {_plain(published.get(name))}"
            )
    return merged


@torch.no_grad()
def initialise_(
    model: nn.Module, published: Mapping[str, torch.Tensor], published_name: PublishedName
) -> Initialization:
    """Copy published weights whose name and shape match; others keep their drawn values."""
    copied, new, used = [], [], set()
    for name, weight in model.state_dict().items():
        source = published_name(name)
        if source is not None and source in published and published[source].shape == weight.shape:
            weight.copy_(published[source])
            copied.append(name)
            used.add(source)
        else:
            new.append(name)
    return Initialization(tuple(copied), tuple(new), tuple(sorted(published.keys() - used)))


def _plain(value: Any) -> Any:
    """Make a value comparable, whether it comes from JSON or from diffusers."""
    return list(value) if isinstance(value, tuple) else value
