"""Names of a family's weights in its original repository: a table in one direction, and both directions from it.

A table maps the layers of diffusers to native ones. Both may have the number of a block, written ``{}``.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from reelweave.loader.errors import UsageError

_NUMBER = re.compile(r"\.(\d+)\.")
_LISTED = 10


@dataclass(frozen=True)
class Fused:
    """Native layer whose rows are those of several layers of diffusers, or of one in another order.

    Attributes:
        native: its name.
        sources: layers of diffusers.
        order: source and part of each piece of its rows, in order; empty: the sources one after the other. The parts of
            a source are equal.
    """

    native: str
    sources: tuple[str, ...]
    order: tuple[tuple[int, int], ...] = ()

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Source and part of each piece."""
        return self.order or tuple((source, 0) for source in range(len(self.sources)))


class Held(NamedTuple):
    """Native tensor or layer of a model, and what it holds.

    Attributes:
        native: its name, without the prefix of whole models.
        sources: names in diffusers.
        pieces: source and part of each piece of its rows, in order.
    """

    native: str
    sources: tuple[str, ...]
    pieces: tuple[tuple[int, int], ...]

    def join(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the native tensor of its sources, which share all dimensions but the first."""
        if len(self.pieces) == 1:
            return tensors[0]
        parts = [tensor.chunk(self._parts(source)) for source, tensor in enumerate(tensors)]
        return torch.cat([parts[source][part] for source, part in self.pieces])

    def split(self, tensor: torch.Tensor, rows: Sequence[int]) -> list[torch.Tensor]:
        """Return the sources of a native tensor, views where nothing changes its place.

        Args:
            tensor: native tensor; its rows are the sum of `rows`.
            rows: number of rows of each source.
        """
        if len(self.pieces) == 1:
            return [tensor]
        sizes = [rows[source] // self._parts(source) for source, _ in self.pieces]
        cut: tuple[torch.Tensor, ...] = torch.split(tensor, sizes)
        by_part = dict(zip(self.pieces, cut, strict=True))
        parts = [
            [by_part[source, part] for part in range(self._parts(source))]
            for source in range(len(self.sources))
        ]
        return [each[0] if len(each) == 1 else torch.cat(each) for each in parts]

    def _parts(self, source: int) -> int:
        return sum(each == source for each, _ in self.pieces)


@dataclass(frozen=True)
class NativeNames:
    """Native names of a family.

    Attributes:
        family: name of the family, for messages.
        renamed: native layers by those of diffusers, where each is one.
        fused: native layers that hold several.
        prefix: prefix of all names in a file of the whole model.
        repackaged: replacements, in order, that make ComfyUI's own name of a tensor from the native one; empty: its
            names are the same.
        computed: patterns of native tensors that a model computes itself, and that are no weights.
        alpha: write an ``alpha`` beside each native adapter; False where diffusers' reader of them fails at one.
        musubi: pattern of the native layers that musubi-tuner adapts; empty: it does not know the family.
        no_adapters: why adapters have no native form; empty: they have one.
    """

    family: str
    renamed: Mapping[str, str]
    fused: tuple[Fused, ...] = ()
    prefix: str = ""
    repackaged: tuple[tuple[str, str], ...] = ()
    computed: tuple[str, ...] = ()
    alpha: bool = True
    musubi: str = ""
    no_adapters: str = ""
    _rules: dict[str, Fused] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        rules = [Fused(native, (name,)) for name, native in self.renamed.items()]
        self._rules.update({source: rule for rule in (*rules, *self.fused) for source in rule.sources})

    def hold(self, names: Iterable[str]) -> list[Held]:
        """Return native tensors or layers that hold named ones, in the order of the names.

        Args:
            names: all tensors of a model by their names in diffusers, or all layers.

        Raises:
            UsageError: some have no native name.
        """
        present = list(names)
        held = self.find(present)
        if unknown := set(present).difference(*(each.sources for each in held)):
            raise UsageError(f"the original repository of {self.family} has no name for {listed(unknown)}")
        return held

    def find(self, names: Iterable[str]) -> list[Held]:
        """Return native tensors or layers that hold named ones, and leave out those without a native name."""
        present = set(names := list(names))
        found = {held.native: held for name in names if (held := self._held(name)) is not None}
        return [held for held in found.values() if present.issuperset(held.sources)]

    def known(self, names: Iterable[str]) -> int:
        """Count the native layers among names, with blocks of any number, and underscores for dots as kohya has them.

        Args:
            names: names; each may have an ending.
        """
        natives = {rule.native for rule in self._rules.values()}
        natives |= {native.replace(".", "_") for native in natives}
        patterns = [re.escape(native).replace(r"\{\}", r"\d+") for native in natives]
        pattern = re.compile(rf"({'|'.join(patterns)})(\..*)?")
        return sum(pattern.fullmatch(name) is not None for name in names)

    def repackage(self, held: Iterable[Held], ending: str = "") -> list[Held]:
        """Return native tensors by ComfyUI's own names; empty where these are the same.

        Args:
            held: tensors, or layers with the ending of their tensors.
            ending: ending of a tensor, such as ``.weight``.
        """
        if not self.repackaged:
            return []
        found = []
        for each in held:
            name = each.native + ending
            for old, new in self.repackaged:
                name = name.replace(old, new)
            found.append(each._replace(native=name.removesuffix(ending)))
        return found

    def is_computed(self, name: str) -> bool:
        """Return whether a native tensor is one that the model computes itself."""
        return any(re.search(pattern, name) for pattern in self.computed)

    def _held(self, name: str) -> Held | None:
        stem, _, leaf = name.rpartition(".")
        for layer, ending in ((name, ""), (stem, f".{leaf}")):
            number = _NUMBER.search(f"{layer}.")
            forms = [(layer, "")]
            if number:
                forms.append((f"{layer[: number.start(1)]}{{}}{layer[number.end(1) :]}", number[1]))
            for form, index in forms:
                if rule := self._rules.get(form):
                    sources = tuple(source.replace("{}", index) + ending for source in rule.sources)
                    return Held(rule.native.replace("{}", index) + ending, sources, rule.pieces)
        return None


def listed(names: Iterable[str]) -> str:
    """Return the first ten names and the number of others, in one phrase."""
    rows = sorted(names)
    more = len(rows) - _LISTED
    return ", ".join(rows[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")
