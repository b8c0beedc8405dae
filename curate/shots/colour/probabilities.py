"""Probabilities of a hard cut before a frame and of a gradual transition at it, from differences of nearby frames.

Small networks, some for cuts and some for gradual transitions, read the differences between frames around the
place (`reelweave.curate.shots.colour.differences`). `tests/bench/train_shots.py` trained them; their weights are in
`probabilities.npz`.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.shots.colour.differences import CHANNELS, LONGEST, FrameDifferences
from reelweave.curate.shots.colour.features import Features, Floats
from reelweave.curate.shots.colour.motion import FARTHEST, RANKS, BlockMotion

CUT_OFFSETS = (0, 1, 2, 4, 7)
"""Frames before and after a cut in the networks' input, counted from either side of it."""

GRADUAL_OFFSETS = (0, 2, 5, 9, 14, 20, 28, 40)
"""Frames before and after a gradual transition in the networks' input, counted as in `CUT_OFFSETS`."""

CUT_REACH = max(CUT_OFFSETS)
"""Number of later frames needed for the probability of a cut before a frame."""

GRADUAL_REACH = max(GRADUAL_OFFSETS)
"""Number of later frames needed for the probability of a gradual transition at a frame."""

_AT_ONCE = 80  # inner dimension per matrix product
_WEIGHTS = Path(__file__).with_name("probabilities.npz")


class NetworkInputs:
    """Selection of the differences around a frame that form the input of one network.

    Args:
        offsets: Frame offsets, counted as in `CUT_OFFSETS`.
        motion: True to include the motion of blocks.
        lags: Lags of the differences that are selected from, ascending.
    """

    def __init__(
        self, offsets: Sequence[int], motion: bool = False, lags: Sequence[int] = range(LONGEST + 1)
    ) -> None:
        positions = _places(offsets)
        pairs = [(a, b) for index, a in enumerate(positions) for b in positions[index + 1 :]]
        self._places = np.array(positions)
        self._later = np.array([b for _, b in pairs])
        self._lags = np.array([b - a for a, b in pairs])
        self._columns = np.searchsorted(np.array(lags), self._lags)
        self._motion = motion

    def __call__(
        self, differences: Floats, moved: Floats, levels: Floats, frames: NDArray[np.intp]
    ) -> Floats:
        """Return the network's inputs for each of the frames, [frames, inputs].

        Args:
            differences: Output of `FrameDifferences.push` for a stretch of frames, as `roots`.
            moved: Output of `BlockMotion.push` for the same frames, as `roots`.
            levels: Output of `levels` for the same frames, [n, 2].
            frames: Indices into the stretch, with enough context on both sides.
        """
        later = frames[:, None] + self._later
        pairs = [differences[later, self._columns], *([moved[later, self._lags]] if self._motion else [])]
        nearby_levels = levels[frames[:, None] + self._places]
        flat = [each.reshape(len(frames), -1) for each in pairs]
        return np.concatenate([*flat, nearby_levels[..., 0], nearby_levels[..., 1]], axis=1)


def lags_of(offsets: Sequence[int]) -> set[int]:
    """Return the lags between two places of a network's input."""
    positions = _places(offsets)
    return {b - a for index, a in enumerate(positions) for b in positions[index + 1 :]}


def _places(offsets: Sequence[int]) -> list[int]:
    """Return the frames of a network's input, counted from the frame after the place."""
    return [-1 - offset for offset in reversed(offsets)] + list(offsets)


def roots(differences: Floats) -> Floats:
    """Return the square roots of differences; rounding leaves some below zero."""
    non_negative = np.maximum(differences, 0)
    return np.sqrt(non_negative, out=non_negative)


def levels(features: Sequence[Features]) -> Floats:
    """Return the logarithms of energy and contrast of frames, [n, 2]."""
    energies = np.log(np.array([each.energy for each in features], np.float32)) * np.float32(0.2)
    contrasts = np.log(np.array([each.contrast for each in features], np.float32) + 1) * np.float32(0.3)
    return np.stack([energies, contrasts], axis=1)


_LAGS = sorted(lags_of(CUT_OFFSETS) | lags_of(GRADUAL_OFFSETS))  # 40 of the 84


class TransitionProbabilities:
    """Transition probabilities of frames, computed once enough later frames are known."""

    def __init__(self) -> None:
        self._likeness = FrameDifferences(_LAGS)
        self._motion = BlockMotion()
        self._differences = np.zeros((GRADUAL_REACH + 1, len(_LAGS), CHANNELS), np.float32)
        self._moved = np.zeros((GRADUAL_REACH + 1, FARTHEST + 1, len(RANKS)), np.float32)
        self._levels = np.zeros((0, 2), np.float32)
        self._start = -GRADUAL_REACH - 1  # frame number of the first buffered row
        self._last: Features | None = None

    @property
    def end(self) -> int:
        """One past the last frame pushed."""
        return self._start + len(self._differences)

    def push(self, features: Sequence[Features]) -> None:
        """Process the next frames."""
        if not len(self._levels):
            self._levels = levels(features[:1]).repeat(len(self._differences), axis=0)
        self._differences = np.concatenate([self._differences, roots(self._likeness.push(features))])
        self._moved = np.concatenate([self._moved, roots(self._motion.push(features))])
        self._levels = np.concatenate([self._levels, levels(features)])
        self._last = features[-1]

    def finish(self) -> None:
        """End the input; the last frame is repeated as context."""
        if self._last is not None:
            self.push([self._last] * GRADUAL_REACH)

    def cuts(self, first: int, end: int) -> Floats:
        """Return the cut probability before each of frames first..end - 1; needs CUT_REACH later frames."""
        return self._judge(0, first, end)

    def gradual(self, first: int, end: int) -> Floats:
        """Return the probability that each of frames first..end - 1 is blended or the first one after.

        It needs GRADUAL_REACH later frames. Context too far before these frames is dropped, so they must not
        be requested again.
        """
        chances = self._judge(1, first, end)
        keep = max(0, end - GRADUAL_REACH - 1 - self._start)
        self._differences, self._levels = self._differences[keep:].copy(), self._levels[keep:].copy()
        self._moved = self._moved[keep:].copy()
        self._start += keep
        return chances

    def _judge(self, network_index: int, first: int, end: int) -> Floats:
        if end <= first:
            return np.zeros(0, np.float32)
        view, networks = _networks()[network_index]
        inputs = view(self._differences, self._moved, self._levels, np.arange(first, end) - self._start)
        return networks(inputs)


class Ensemble:
    """Multilayer perceptrons with ReLU activations and the same inputs, whose mean is the output.

    Args:
        networks: Weights [in, out] and biases [out] of each layer of each perceptron.
    """

    def __init__(self, networks: Sequence[Sequence[tuple[Floats, Floats]]]) -> None:
        first = [layers[0] for layers in networks]
        self._weights = np.concatenate([weights for weights, _ in first], axis=1)
        self._biases = np.concatenate([biases for _, biases in first])
        # Further layers are one batched product for all perceptrons, [network, in, out] and [network, 1, out].
        self._further = [
            (np.stack([weights for weights, _ in layer]), np.stack([biases for _, biases in layer])[:, None])
            for layer in zip(*(layers[1:] for layers in networks), strict=True)
        ]
        self._count = len(networks)

    def __call__(self, inputs: Floats) -> Floats:
        """Return the probability of each row, [n]."""
        values = _times(inputs, self._weights) + self._biases
        values = values.reshape(len(inputs), self._count, -1).transpose(1, 0, 2)
        for weights, biases in self._further:
            values = np.matmul(np.maximum(values, 0), weights) + biases
        return np.asarray(np.mean(1 / (1 + np.exp(-values[..., 0].clip(-30, 30))), axis=0), np.float32)


def _times(rows: Floats, weights: Floats) -> Floats:
    """Return the matrix product, in parts so small that BLAS runs each on one thread."""
    summed: Floats = rows[:, :_AT_ONCE] @ weights[:_AT_ONCE]
    for first in range(_AT_ONCE, len(weights), _AT_ONCE):
        summed += rows[:, first : first + _AT_ONCE] @ weights[first : first + _AT_ONCE]
    return summed


@cache
def _networks() -> tuple[tuple[NetworkInputs, Ensemble], tuple[NetworkInputs, Ensemble]]:
    """Load the ensembles for cuts and for gradual transitions."""
    with np.load(_WEIGHTS, allow_pickle=False) as stored:
        layers = {name: stored[name].astype(np.float32) for name in stored.files}
    seeds = sorted({name.split("_")[1] for name in layers})
    cut, gradual = (
        Ensemble(
            [
                [
                    (layers[f"{kind}_{seed}_weights_{n}"], layers[f"{kind}_{seed}_biases_{n}"])
                    for n in range(3)
                ]
                for seed in seeds
            ]
        )
        for kind in ("cut", "gradual")
    )
    return (NetworkInputs(CUT_OFFSETS, True, _LAGS), cut), (
        NetworkInputs(GRADUAL_OFFSETS, lags=_LAGS),
        gradual,
    )
