"""Blend tree: leaves, their weights, and their draws per epoch."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from reelweave.loader.blend.selection.config import Selection
from reelweave.loader.blend.subset import SampleRange
from reelweave.loader.errors import UsageError


@dataclass(frozen=True)
class Leaf:
    """Set of samples drawn uniformly.

    Attributes:
        name: path in the blend, such as "images" or "web/images".
        dataset: number of its dataset in the blend.
        split: split of the dataset, such as train or val; None for all of its samples.
        start: begin of its range, among the split's selected samples in the order of the shards.
        stop: end of its range, exclusive.
        subflavors: metadata of the samples, from the files.
        span: the range as the files give it.
        selection: choice among the split's samples.
        digest: beginning of the checksum of the rows that it chooses; "" where it chooses all.
    """

    name: str
    dataset: int
    split: str | None
    start: int
    stop: int
    subflavors: dict[str, Any]
    span: SampleRange
    selection: Selection = field(default_factory=Selection)
    digest: str = ""


@dataclass(frozen=True)
class BlendNode:
    """Weighted node of a blend: full name, weight or repetitions, and the number of a leaf or a nested blend."""

    name: str
    factor: Fraction
    node: "int | Group"


@dataclass(frozen=True)
class Group:
    """Blend of nodes, the inner node of a tree.

    Attributes:
        parts: nodes of the blend.
        by: unit of the factors: repetitions of all samples, or weights by samples or by tokens.
        samples: draws per epoch; None derives them from the nodes.
    """

    parts: tuple[BlendNode, ...]
    by: Literal["repetitions", "samples", "tokens"]
    samples: int | None = None


class LeafSize(NamedTuple):
    """Number of drawable samples of a leaf, and their tokens."""

    samples: int
    tokens: int


def epoch_draws(node: int | Group, held: Sequence[LeafSize]) -> dict[int, Fraction]:
    """Return the exact draws per epoch of each leaf, by number, without leaves that are not drawn.

    A leaf alone is drawn once. Repetitions multiply the draws of their node. Weights keep the proportions within nodes
    and scale the nodes relative to each other. The total is ``samples``, or by default the nodes' unscaled draws. Nodes
    of weight 0 count as absent. By tokens, a node's draws are its share of the tokens over the mean length of its
    draws.

    Args:
        node: number of a leaf, or a blend.
        held: size of each leaf.

    Raises:
        UsageError: a node with a positive weight has no drawable sample.
    """
    if isinstance(node, int):
        return {node: Fraction(held[node].samples)}
    # Draws of each part by itself; those of weight 0 may be empty.
    within = [epoch_draws(part.node, held) if part.factor else {} for part in node.parts]
    if node.by == "repetitions":
        scales = [part.factor for part in node.parts]
    else:
        # Weights: how often a part is drawn for each of its units, samples or tokens.
        sizes = [sum(draws.values(), Fraction()) for draws in within]
        units = sizes if node.by == "samples" else [_tokens(draws, held) for draws in within]
        for part, unit in zip(node.parts, units, strict=True):
            if part.factor and not unit:
                raise UsageError(
                    f"{part.name} has weight {float(part.factor):g}, but no sample that can be drawn"
                )
        rates = [
            part.factor / unit if unit else Fraction() for part, unit in zip(node.parts, units, strict=True)
        ]
        # All rates together are scaled to the samples of an epoch.
        unscaled = sum((rate * size for rate, size in zip(rates, sizes, strict=True)), Fraction())
        total = node.samples or sum(sizes, Fraction())
        scales = [rate * total / unscaled for rate in rates]
    return {
        leaf: draws * scale
        for scale, part in zip(scales, within, strict=True)
        for leaf, draws in part.items()
    }


def weighted_leaves(node: int | Group) -> set[int]:
    """Return the leaves whose number of draws follows from weights, and not from their samples alone."""
    return _leaves(node) - _repeated_leaves(node)


def reweight_blend(tree: int | Group, weights: Mapping[str, float] | Sequence[float]) -> int | Group:
    """Return the same blend with other weights.

    Args:
        tree: tree of a blend.
        weights: weights by full node name, which keep all others; or weights of all nodes of the outermost blend.

    Raises:
        UsageError: a name or number matches no node, or a blend is left without any weight.
    """
    parts = tree.parts if isinstance(tree, Group) and tree.by != "repetitions" else ()
    if not isinstance(weights, Mapping):
        if len(weights) != len(parts):
            raise UsageError(f"{len(weights)} weights were given for {len(parts)} nodes of the blend")
        weights = {part.name: weight for part, weight in zip(parts, weights, strict=True)}
    names = [part.name for part in _weighted_nodes(tree)]
    for name, weight in weights.items():
        if not 0 <= weight < math.inf:
            raise UsageError(f"weight {weight} of {name} is no share; give a number from 0 on")
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            nearest = f"did you mean {close[0]}? " if close else ""
            raise UsageError(
                f"no node with a weight is called {name}; {nearest}there are: {', '.join(names)}"
            )
    return _reweight_node(tree, {name: exact(weight) for name, weight in weights.items()})


def exact(factor: float) -> Fraction:
    """Return a float's shortest decimal as a fraction: 0.1 is a tenth."""
    return Fraction(repr(float(factor)))


def _leaves(node: int | Group) -> set[int]:
    if isinstance(node, int):
        return {node}
    return set[int]().union(*(_leaves(part.node) for part in node.parts))


def _repeated_leaves(node: int | Group) -> set[int]:
    if isinstance(node, int):
        return {node}
    if node.by != "repetitions":
        return set()
    return set[int]().union(*(_repeated_leaves(part.node) for part in node.parts))


def _weighted_nodes(node: int | Group) -> list[BlendNode]:
    if isinstance(node, int):
        return []
    weighted_parts = [] if node.by == "repetitions" else list(node.parts)
    return weighted_parts + [part for inner in node.parts for part in _weighted_nodes(inner.node)]


def _reweight_node(node: int | Group, weights: Mapping[str, Fraction]) -> int | Group:
    if isinstance(node, int):
        return node
    new_weights = {} if node.by == "repetitions" else weights
    parts = tuple(
        replace(part, factor=new_weights.get(part.name, part.factor), node=_reweight_node(part.node, weights))
        for part in node.parts
    )
    check_weights(parts, node.by)
    return replace(node, parts=parts)


def check_weights(parts: Sequence[BlendNode], by: str) -> None:
    """Refuse a blend whose factors are all zero.

    Raises:
        UsageError: all factors are zero.
    """
    if not any(part.factor for part in parts):
        factors = "repetitions" if by == "repetitions" else "weight"
        raise UsageError(
            f"{factors} is 0 for all of {', '.join(part.name for part in parts)}; give one of them more"
        )


def _tokens(draws: Mapping[int, Fraction], held: Sequence[LeafSize]) -> Fraction:
    return sum(
        (count * held[leaf].tokens / held[leaf].samples for leaf, count in draws.items() if count), Fraction()
    )
