"""Video embedding of a clip: from a CLIP model, or perceptual without weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, field_validator

from reelweave.curate.frames.perceptual import PICTURE, describe
from reelweave.curate.models.clip_frames import ClipError, Fault, clip_pictures, shown_pictures
from reelweave.curate.models.device import Device
from reelweave.curate.models.open_clip_model import OpenClip, check_weights
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings

Floats = NDArray[np.float32]

STAGES = "stages."
"""Start of the names of backends that are stages of users."""


class EmbedConfig(Settings):
    """Video embedding of each clip, stored beside it as KEY.video.npy."""

    REVISION: ClassVar[int] = 0
    SPEED_ONLY: ClassVar = frozenset({"device", "threads", "batch_clips"})
    READ_WITH: ClassVar = dict.fromkeys(
        ("model", "pretrained", "frames", "batch_clips", "dtype", "device", "threads"),
        ("backend", ("open_clip",)),
    )

    backend: str = Field(
        "perceptual",
        description="embedding of clips. none: no embedding. perceptual: their look, without weights. open_clip:"
        " their content by a CLIP model, searchable by text. stages.NAME: the vectors of a stage of your own",
    )
    model: str = Field(
        "ViT-B-32",
        description="open_clip model: a name in its list, a folder with weights, or hf-hub:OWNER/NAME",
    )
    pretrained: str = Field(
        "",
        description="open_clip weights: a file, or the tag of a training run; empty when model is a folder",
    )
    frames: int = Field(8, ge=1, le=256, description="pictures per clip, evenly spaced and mean-pooled")
    batch_clips: int = Field(8, ge=1, le=1024, description="clips per forward pass on a GPU")
    dtype: Literal["float16", "float32"] = Field("float16", description="dtype of the stored vector")
    device: Device = Field("auto", description="device of the model; auto: the GPU, if there is one")
    threads: int = Field(1, ge=1, le=256, description="CPU threads of the model, on the CPU")

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str) -> str:
        if backend not in ("none", "perceptual", "open_clip") and not backend.startswith(STAGES):
            raise ValueError("write none, perceptual, open_clip, or stages.NAME for a stage of your own")
        return backend


class Preprocessing(Protocol):
    """Preprocessing of a model's pictures."""

    @property
    def picture_size(self) -> int | tuple[int, int]:
        """Size of the pictures for `reelweave.curate.models.clip_frames.clip_pictures`."""

    def __call__(self, pictures: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the model's input for pictures, uint8 [n, h, w, 3] RGB."""


@dataclass(frozen=True)
class EmbedInput:
    """Input of the model for one clip.

    Attributes:
        pictures: Pictures after the model's preprocessing, [n, ...].
        times_s: float64 [n], seconds after the clip's start.
    """

    pictures: NDArray[Any]
    times_s: NDArray[np.float64]


@dataclass(frozen=True)
class Embedding:
    """Embedding of a clip and of its pictures.

    Attributes:
        vector: [D], unit length up to rounding, in the stored dtype.
        frames: float32 [n, D]: vector of each picture, unit length.
        times_s: float64 [n], seconds after the clip's start.
    """

    vector: NDArray[Any]
    frames: Floats
    times_s: NDArray[np.float64]


class ClipEmbedder:
    """Function from clips to embeddings. The model is loaded on first use and not pickled."""

    def __init__(self, config: EmbedConfig) -> None:
        if config.backend == "none":
            raise UsageError("embed.backend=none makes no embeddings; set it to perceptual or open_clip")
        if config.backend.startswith(STAGES):
            raise UsageError(
                f"the embeddings were made by the stage {config.backend}, which a curation alone runs; compare with a"
                " clip of the dataset, by its key"
            )
        self._config = config
        self._model: _Perceptual | OpenClip | None = None
        self._preprocessing: Preprocessing | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    def check(self) -> None:
        """Check that the model is available: find its weights, then load it once.

        Raises:
            UsageError: The model is not available; the message says what to do.
        """
        if self._config.backend == "open_clip":
            check_weights(self._config.model, self._config.pretrained)
            self._load_model()

    def fingerprint(self) -> dict[str, str]:
        """Return the model's name and the sha256 of its weights, for the manifest."""
        if self._config.backend == "perceptual":
            return {"model": "perceptual"}
        model = self._open_clip()
        name = (
            f"{self._config.model}:{self._config.pretrained}"
            if self._config.pretrained
            else self._config.model
        )
        return {"model": name, "weights_sha256": model.sha256}

    def __call__(self, clips: Sequence[bytes]) -> list[Embedding | Fault]:
        """Return an embedding or a fault for each clip; results do not depend on the batch."""
        return self.embed([self.sample(clip) for clip in clips])

    def sample(self, clip: bytes) -> EmbedInput | Fault:
        """Return the model's input for a clip; only the first call in a process may need the model."""
        prepare = self.preprocessing()
        try:
            pictures, times_s = clip_pictures(clip, count=self._config.frames, size=prepare.picture_size)
        except ClipError as error:
            return Fault(str(error))
        return EmbedInput(prepare(pictures), times_s)

    def film(self, data: bytes) -> Embedding | Fault:
        """Return the embedding of any film, as a player shows it, or a fault."""
        prepare = self.preprocessing()
        try:
            pictures, times_s = shown_pictures(data, self._config.frames, prepare.picture_size)
        except ClipError as error:
            return Fault(str(error))
        (embedding,) = self.embed([EmbedInput(prepare(pictures), times_s)])
        return embedding

    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of the model, which is loaded to ask for it. Unlike the model it is pickled."""
        if self._preprocessing is None:
            self._preprocessing = self._load_model().preprocessing
        return self._preprocessing

    def learn_preprocessing(self) -> None:
        """Load the model for its preprocessing alone, so that `sample` needs no model where this is unpickled."""
        self._preprocessing = self._preprocessing or self.on_cpu().preprocessing()

    def on_cpu(self) -> "ClipEmbedder":
        """Return the same embedder on the CPU: a process that asks once must not keep memory of the workers' GPU."""
        return ClipEmbedder(self._config.model_copy(update={"device": "cpu"}))

    def embed(self, samples: Sequence[EmbedInput | Fault]) -> list[Embedding | Fault]:
        """Return an embedding for each sample, and each fault as it is; results do not depend on the batch."""
        model = self._load_model()
        results: list[Embedding | Fault] = []
        for start in range(0, len(samples), self._config.batch_clips):
            some = samples[start : start + self._config.batch_clips]
            blocks = [embed_input.pictures for embed_input in some if isinstance(embed_input, EmbedInput)]
            encoded = iter(model.encode(blocks, self._config.frames))
            results += [
                self._embedding(next(encoded), embed_input.times_s)
                if isinstance(embed_input, EmbedInput)
                else embed_input
                for embed_input in some
            ]
        return results

    def pictures(self, pictures: Sequence[NDArray[np.uint8]]) -> Floats:
        """Embed pictures, uint8 [h, w, 3] RGB; float32 [n, D], unit length."""
        prepare = self.preprocessing()
        return np.concatenate(self._load_model().encode([prepare(picture[None]) for picture in pictures], 1))

    def text(self, words: Sequence[str]) -> Floats:
        """Embed texts for comparison with pictures, float32 [n, D], unit length.

        Raises:
            UsageError: The backend has no text encoder.
        """
        return self._open_clip().texts(words)

    def cut_texts(self, words: Sequence[str]) -> list[bool]:
        """Return for each text whether the model reads its beginning alone; errors as in `text`."""
        return self._open_clip().cut(words)

    def _embedding(self, frames: Floats, times_s: NDArray[np.float64]) -> Embedding | Fault:
        vector = pool_frames(frames)
        if vector is None:
            return Fault("the model gives numbers that are not finite, or pictures that cancel each other")
        return Embedding(vector.astype(self._config.dtype), frames, times_s)

    def _load_model(self) -> "_Perceptual | OpenClip":
        config = self._config
        if self._model is None:
            self._model = (
                _Perceptual()
                if config.backend == "perceptual"
                else OpenClip(
                    config.model, config.pretrained, config.device, config.threads, config.batch_clips
                )
            )
        return self._model

    def _open_clip(self) -> OpenClip:
        model = self._load_model() if self._config.backend == "open_clip" else None
        if not isinstance(model, OpenClip):
            raise UsageError(
                "the perceptual embedding knows no words; set embed.backend=open_clip and give it a model"
            )
        return model


def pool_frames(frames: Floats) -> Floats | None:
    """Return the mean of unit vectors, float32 [n, D], at unit length; None where it is not finite or zero."""
    mean = frames.astype(np.float64).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if not np.isfinite(length) or length < 1e-6:
        return None
    return np.asarray(mean / length, np.float32)


class _Fitted:
    """Scaling of pictures to those that perceptual embeddings describe."""

    picture_size = PICTURE

    def __call__(self, pictures: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.stack([_fit_picture(picture) for picture in pictures])


class _Perceptual:
    """Perceptual embedding behind the interface of `OpenClip`."""

    preprocessing = _Fitted()

    def encode(self, blocks: Sequence[NDArray[np.uint8]], _length: int) -> list[Floats]:
        return [describe(block) for block in blocks]


def _fit_picture(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if picture.shape[1::-1] == PICTURE:
        return picture
    return np.asarray(Image.fromarray(picture).resize(PICTURE, Image.Resampling.BOX))
