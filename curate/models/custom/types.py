"""Base classes of a stage that a user writes, and what it receives and returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr

from reelweave.curate.models.clip_frames import Fault, clip_pictures
from reelweave.curate.models.custom.code import StageCode
from reelweave.loader.settings import Settings


class StageConfig(Settings):
    """A stage of your own. Derive from it to add keys; docs/stages.md."""

    SPEED_ONLY: ClassVar = frozenset({"use", "batch_clips", "cpus", "gpus"})

    use: str = Field(
        "",
        description="code: FILE.py:CLASS or MODULE:CLASS; empty: the entry point of this name in the group"
        " reelweave.stages",
    )
    after_dedup: bool = Field(
        False, description="run for kept clips only, once duplicates are known; for costly models"
    )
    batch_clips: int = Field(8, ge=1, le=1024, description="clips per call")
    cpus: float = Field(1.0, ge=0, description="CPUs of each worker")
    gpus: float = Field(
        0.0, ge=0, description="GPUs of each worker or a share of one, if there are GPUs; 0: run on the CPU"
    )

    _code: StageCode | None = PrivateAttr(None)

    @property
    def code(self) -> StageCode:
        """The stage's code, known once the configuration of a curation is validated."""
        if self._code is None:
            raise ValueError("a stage's code is known as part of a CurateConfig only")
        return self._code


@dataclass(frozen=True)
class Clip:
    """A clip as a stage of a user's receives it: what follows from its bytes, and its caption.

    Attributes:
        data: Encoded clip, an MP4 file with a constant frame rate; empty for a stage with `CustomStage.prepare`, which
            has seen it.
        key: Key of its sample.
        frames: Number of frames.
        fps: Frame rate.
        height: Height in pixels.
        width: Width in pixels.
        duration_s: frames / fps.
        audio: Codec of the sound track, or "none".
        caption: Its caption, "" without one; known to stages with `CustomStage.reads_caption` only.
        prepared: Result of `CustomStage.prepare` for it.
    """

    data: bytes
    key: str
    frames: int
    fps: float
    height: int
    width: int
    duration_s: float
    audio: str = "none"
    caption: str = ""
    prepared: Any = None

    def pictures(
        self,
        count: int | None = None,
        *,
        fps: float | None = None,
        size: int | tuple[int, int] | None = None,
    ) -> NDArray[np.uint8]:
        """Return evenly spaced pictures, uint8 [n, height, width, 3] RGB.

        Args:
            count: Maximum number of pictures; None: all, or all of ``fps``.
            fps: Pictures per second.
            size: Short side in pixels, or (width, height); None: the clip's size.

        Raises:
            ClipError: The clip does not decode; uncaught, it fails this clip alone.
        """
        return clip_pictures(self.data, fps, count, size)[0]


@dataclass(frozen=True)
class Embedded:
    """Vector of a clip, [D], which is scaled to unit length and stored as float16, and its scores."""

    vector: NDArray[Any]
    scores: Mapping[str, float] = field(default_factory=dict)


ClipOutput = Mapping[str, float] | Embedded | Fault
"""Result for one clip: scores by name, a vector with scores, or why there is neither."""


class CustomStage(ABC):
    """Stage over clips that a user writes; a worker makes one object and calls it with batches of clips.

    An exception fails the clip that raises it, with its message as the reason, and no other.

    Attributes:
        Config: Model of its configuration.
        scores: Names of the scores it gives, with what each means. Thresholds are ``filters.min_NAME`` and
            ``filters.max_NAME``.
        embeds: True if it gives a vector for each clip, which ``embed.backend=stages.NAME`` takes for its embedding.
        reads_caption: True if it needs captions, and so runs after them.
    """

    Config: ClassVar[type[StageConfig]] = StageConfig
    scores: ClassVar[Mapping[str, str]] = {}
    embeds: ClassVar[bool] = False
    reads_caption: ClassVar[bool] = False

    def __init__(self, config: Any, device: str) -> None:
        """Load the model, once per worker.

        Args:
            config: Configuration, an instance of ``Config``.
            device: "cuda" or "cpu".
        """
        self.config, self.device = config, device

    @classmethod
    def models(cls, config: Any) -> Sequence[str]:  # noqa: ARG003 - for those who override it
        """Return models that the configuration names: files, folders, names on the hub. Another content runs anew."""
        return ()

    @classmethod
    def prepare(cls, config: Any, clip: Clip) -> Any:  # noqa: ARG003 - for those who override it
        """Return the model's input for a clip, from which ``clip.prepared`` comes.

        Override it for a model on a GPU: other processors then decode ahead, and the GPU need not wait. It has no
        model, and must return what can be pickled.
        """
        return None

    @abstractmethod
    def __call__(self, clips: Sequence[Clip]) -> Sequence[ClipOutput]:
        """Return a result for each clip, which must not depend on the other clips of the call."""
