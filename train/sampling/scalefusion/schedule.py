"""ScaleFusion's schedule as data: launches of exchanges, waits and computations, in program order.

The algorithms of "ScaleFusion: Scalable Inference of Spatial-Temporal Diffusion Transformers", sections 4.3 and 4.4.
Layers alternate between spatial and temporal attention. A slice of a spatial layer has some frames, one of a temporal
layer some places; each is computed alone. Between two layers every slice of the first sends one piece to every
slice of the second, each by an all-to-all of its own.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from reelweave.loader.errors import UsageError

LayerKind = Literal["spatial", "temporal"]
KINDS: tuple[LayerKind, LayerKind] = ("spatial", "temporal")


class Slicing(NamedTuple):
    """The four numbers of a schedule. ``Slicing(1, 1, 0, 0)`` is DSP: one blocking exchange before each layer.

    Attributes:
        temporal: slices along time, those of each spatial layer, N_T.
        spatial: slices along places, those of each temporal layer, N_S.
        lifted_temporal: slices of the next spatial layer sent during a temporal layer, L_T.
        lifted_spatial: slices of the next temporal layer sent during a spatial layer, L_S.
    """

    temporal: int = 4
    spatial: int = 4
    lifted_temporal: int = 1
    lifted_spatial: int = 3

    def count(self, layer: int) -> int:
        """Return the number of slices of a layer; even layers are spatial, odd ones and -1, the input, temporal."""
        return self.spatial if layer % 2 else self.temporal

    def num_lifted(self, layer: int) -> int:
        """Return the number of a layer's slices that are sent while the layer before it is computed."""
        return self.lifted_spatial if layer % 2 else self.lifted_temporal

    def check(self) -> "Slicing":
        """Return these numbers if they make a schedule.

        Raises:
            UsageError: there is no slice, or more slices are lifted than exist.
        """
        for letter, count, lifted in (
            ("T", self.temporal, self.lifted_temporal),
            ("S", self.spatial, self.lifted_spatial),
        ):
            if count < 1:
                raise UsageError(f"ScaleFusion needs slices: N_{letter}={count} must be at least 1")
            if not 0 <= lifted <= count:
                raise UsageError(
                    f"ScaleFusion lifts slices that exist: L_{letter}={lifted} must lie in 0..N_{letter}={count}"
                )
        return self


DEFAULT = Slicing()
"""The paper's numbers, N_T = N_S = 4, L_T = 1, L_S = 3."""
DSP = Slicing(1, 1, 0, 0)
"""Dynamic sequence parallelism (Zhao et al. 2024): whole layers, with blocking exchanges between them."""


@dataclass(frozen=True)
class PieceLaunch:
    """Start of the all-to-all of one piece.

    Attributes:
        layer: receiving layer.
        slice: receiving slice, which waits for the piece.
        part: slice of the layer before, or of the input, that has computed it.
    """

    layer: int
    slice: int
    part: int


@dataclass(frozen=True)
class Wait:
    """Wait for all pieces of a slice."""

    layer: int
    slice: int


@dataclass(frozen=True)
class Compute:
    """Computation of one layer on one slice."""

    layer: int
    slice: int


Operation = PieceLaunch | Wait | Compute


def schedule(slicing: Slicing, pairs: int) -> list[Operation]:
    """Return the operations of a model pass, the same on every rank.

    Algorithm 1 of the paper with the ranges of its loops mended: as printed it never sends some pieces.
    Pieces that are not lifted leave one slice ahead of their use, as sections 4.1 and 4.3 say. Algorithm 1
    launches all of a layer's at once. The streams are as busy this way, and fewer receive buffers are alive.

    Args:
        slicing: the four numbers.
        pairs: number of pairs of a spatial and a temporal layer.

    Raises:
        UsageError: the four numbers make no schedule.
    """
    slicing.check()
    operations: list[Operation] = [
        PieceLaunch(0, index, part)
        for part in range(slicing.count(-1))
        for index in range(slicing.num_lifted(0))
        if pairs
    ]
    for layer in range(2 * pairs):
        count, launched, parts = slicing.count(layer), slicing.num_lifted(layer), slicing.count(layer - 1)
        following = range(slicing.num_lifted(layer + 1) if layer + 1 < 2 * pairs else 0)
        for index in range(count):
            ahead = range(launched, min(index + 2, count))
            operations += [PieceLaunch(layer, other, part) for other in ahead for part in range(parts)]
            launched = max(launched, ahead.stop)
            operations += [Wait(layer, index), Compute(layer, index)]
            operations += [PieceLaunch(layer + 1, other, index) for other in following]
    return operations
