"""Text found by an OCR package, where one is installed; none is needed for anything else."""

import importlib.util
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from curate.filters.config import ScoreConfig
from curate.filters.sample import ClipSample
from loader.errors import UsageError

Polygon = NDArray[np.float64]

_PACKAGES = {"rapidocr": "rapidocr_onnxruntime", "easyocr": "easyocr"}  # imported by the name they install by
_MIN_INTERVAL_S = 1.0


class TextReader(Protocol):
    """Whatever finds text in a picture."""

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        """Outlines [corners, 2] in (x, y) pixels of each line of text in a picture [h, w, 3] RGB."""
        ...


def check_ocr(config: ScoreConfig) -> None:
    """Makes sure that the package of ``scores.ocr`` is there.

    Raises:
        UsageError: it is not installed.
    """
    package = _PACKAGES.get(config.ocr)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"scores.ocr = {config.ocr} needs the package {package}, which is not installed:"
            f" pip install {package}, or set scores.ocr to none"
        )


@cache
def text_reader(name: str) -> TextReader:
    """The reader of a package, loaded once per process.

    Raises:
        UsageError: the name is not one of ``scores.ocr``.
    """
    if name == "rapidocr":
        return _RapidReader()
    if name == "easyocr":
        return _EasyReader()
    raise UsageError(f"scores.ocr = {name} is not known; use one of {', '.join(_PACKAGES)}, or none")


def ocr_scores(sample: ClipSample, reader: TextReader) -> dict[str, float]:
    """``ocr_share``: share of the picture inside the outlines of text; the median of one picture per second."""
    height, width = sample.pictures.shape[1:3]
    shares = []
    latest = -_MIN_INTERVAL_S
    for picture, at_s in zip(sample.pictures, sample.times_s, strict=True):
        if at_s - latest >= _MIN_INTERVAL_S - 1e-9:
            latest = float(at_s)
            shares.append(min(1.0, sum(map(_area, reader(picture))) / (height * width)))
    return {"ocr_share": float(np.median(shares))}


def _area(polygon: Polygon) -> float:
    x, y = np.asarray(polygon, np.float64).T
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2


class _RapidReader:
    """RapidOCR on the processor; its models come inside the wheel."""

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        self._engine: Any = RapidOCR()

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        found, _ = self._engine(np.ascontiguousarray(picture[..., ::-1]), use_cls=False)
        return [np.array(box, np.float64) for box, _, _ in found or ()]


class _EasyReader:
    """EasyOCR on the processor; it fetches its models unless they lie where it looks for them."""

    def __init__(self) -> None:
        import easyocr

        self._engine: Any = easyocr.Reader(["en"], gpu=False, verbose=False)

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        found = self._engine.readtext(np.ascontiguousarray(picture))
        return [np.array(box, np.float64) for box, _, _ in found]
