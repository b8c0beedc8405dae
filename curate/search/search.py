"""Search for clips of a finished dataset by text or by example, among their stored embeddings."""

import io
import logging
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.models.embed import ClipEmbedder
from reelweave.curate.search.cell_file import CellFile
from reelweave.curate.search.vectors import MEMBER, stored_vector, stored_vectors
from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.tars.members import members
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig, open_object

_log = logging.getLogger(__name__)

WEIGHTS_VERSION = "embed_weights_sha256"
"""Key in the manifest's versions with the digest of the embedding model's weights."""

_MAX_EXAMPLE_BYTES = 1 << 30
_PICTURES = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")  # readers of other formats may start programs
_CHUNK_ROWS = 1 << 16
_TINY = 1e-12

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Hit:
    """Found sample: its row in the index, and the cosine similarity to the query."""

    row_number: int
    score: float


class ClipSearch:
    """Search over the embeddings of one dataset: by its search index, or of all of them in memory.

    Args:
        dataset: Finished dataset.
        max_bytes: Maximum size of the embeddings in memory, where there is no search index.
        exact: True if a query is compared with all embeddings, although there is a search index.
    """

    def __init__(self, dataset: Dataset, max_bytes: int = 16 * 2**30, exact: bool = False) -> None:
        self._dataset = dataset
        self._max_bytes = max_bytes
        self._cells = None if exact else CellFile.open(dataset.storage, dataset.manifest)

    @property
    def searched(self) -> int:
        """Number of samples with an embedding."""
        return len(self._rows_and_matrix[0]) if self._cells is None else len(self._cells)

    def by_words(self, words: str, embedder: ClipEmbedder, top: int) -> list[Hit]:
        """Return the clips that match a text, best first; equal scores by key.

        Raises:
            UsageError: The embedder has no text encoder, or is not the model of this dataset.
        """
        if not words.strip():
            raise UsageError("the words to search for are empty")
        self.check_model(embedder)
        if embedder.cut_texts([words])[0]:
            _log.warning(
                "the words are more than the embedding's model reads: the search is for their beginning"
            )
        return self._nearest(embedder.text([words])[0], top)

    def by_key(self, key: str, top: int) -> list[Hit]:
        """Return the clips most similar to the sample ``key``, without itself.

        Raises:
            UsageError: There is no such sample, or it has no embedding.
        """
        row_number = self._dataset.row_number(key)
        if row_number is None:
            raise UsageError(f"{self._dataset.storage.root} has no sample {key}")
        self._check_any()
        held = self._dataset.rows_at(np.array([row_number]), ["shard", "members"])
        if not len(members(held, MEMBER).rows()):
            raise UsageError(f"sample {key} has no embedding, so nothing can be compared with it")
        vector = stored_vector(self._dataset, row_number).astype(np.float32)
        hits = self._nearest(vector / max(float(np.linalg.norm(vector)), _TINY), top + 1)
        return [hit for hit in hits if hit.row_number != row_number][:top]

    def by_file(
        self, path: str, embedder: ClipEmbedder, top: int, storage: StorageConfig | None = None
    ) -> list[Hit]:
        """Return the clips most similar to a picture or a video.

        Raises:
            UsageError: There is no such file, or the embedder is not the model of this dataset.
            RunError: The file is neither a picture nor a video.
        """
        data = _read_example(path, storage or StorageConfig())
        self.check_model(embedder)
        picture = _picture(data, path)
        if picture is not None:
            return self._nearest(embedder.pictures([picture])[0], top)
        embedding = embedder.film(data)
        if isinstance(embedding, Fault):
            raise RunError(f"{path} is neither a picture nor a video: {embedding.reason}")
        return self._nearest(embedding.vector.astype(np.float32), top)

    def check_model(self, embedder: ClipEmbedder) -> None:
        """Check that the embedder has the weights in the manifest, if the manifest names any.

        Raises:
            UsageError: The weights differ.
        """
        made_with = self._dataset.manifest.versions.get(WEIGHTS_VERSION)
        has = embedder.fingerprint().get("weights_sha256")
        if made_with and has != made_with:
            raise UsageError(
                f"the embeddings of {self._dataset.storage.root} were made with other weights (sha256"
                f" {made_with[:12]}...) than this model's; give the model they were made with"
            )

    def _nearest(self, query: Floats, top: int) -> list[Hit]:
        if top < 1:
            raise UsageError(f"top={top} asks for nothing; give 1 or more")
        if self._cells is not None:
            self._check_width(self._cells.width, query)
            nearest = self._cells.nearest(query.astype(np.float32), top)
            return [
                Hit(row, score) for row, score in zip(*(column.tolist() for column in nearest), strict=True)
            ]
        rows, matrix = self._rows_and_matrix
        self._check_width(matrix.shape[1], query)
        scores = np.concatenate(
            [
                matrix[start : start + _CHUNK_ROWS].astype(np.float32) @ query
                for start in range(0, len(matrix), _CHUNK_ROWS)
            ]
        )
        best = np.argsort(-scores, kind="stable")[:top]
        return [Hit(int(rows[index]), float(scores[index])) for index in best]

    def _check_any(self) -> NDArray[np.int64]:
        """Return the rows with an embedding, where there is no search index.

        Raises:
            UsageError: There are none.
        """
        rows = np.zeros(0, np.int64) if self._cells is not None else self._dataset.members(MEMBER).rows()
        if self._cells is None and not len(rows):
            raise UsageError(
                f"{self._dataset.storage.root} holds no video embeddings; curate it again with"
                " embed.backend=open_clip or perceptual"
            )
        return rows

    def _check_width(self, width: int, query: Floats) -> None:
        if width != len(query):
            raise UsageError(
                f"this model gives {len(query)} numbers per clip and {self._dataset.storage.root} holds"
                f" {width}; give the model its embeddings were made with"
            )

    @cached_property
    def _rows_and_matrix(self) -> tuple[NDArray[np.int64], NDArray[np.float16] | Floats]:
        """Row numbers in the index, rising, and their embeddings, [n, D] of unit length."""
        rows = self._check_any()
        return rows, stored_vectors(self._dataset, rows, self._max_bytes)


def _read_example(path: str, config: StorageConfig) -> bytes:
    storage, name = open_object(path, config)
    info = storage.stat(name)
    if info is None:
        raise UsageError(f"there is no file {path}, and no sample of that key")
    if info.size > _MAX_EXAMPLE_BYTES:
        raise UsageError(f"{path} has {info.size / 2**30:.1f} GiB; give a short video or a picture")
    return storage.read(name)


def _picture(data: bytes, path: str) -> NDArray[np.uint8] | None:
    """Decode a picture file, upright, to uint8 [h, w, 3] RGB; None for other files."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=_PICTURES) as opened:
            return np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    except UnidentifiedImageError:
        return None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise RunError(f"{path} is a picture that cannot be read: {error}") from error
