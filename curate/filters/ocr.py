"""Text found by an optional OCR package."""

import importlib.util
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.config import ScoreConfig
from reelweave.curate.filters.sample import ClipSample
from reelweave.loader.errors import UsageError

Polygon = NDArray[np.float64]

_PACKAGES = {"rapidocr": "rapidocr_onnxruntime", "easyocr": "easyocr"}  # import names
_MIN_INTERVAL_S = 1.0


class TextReader(Protocol):
    """Detector of text in a picture."""

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        """Return the outline [corners, 2], in (x, y) pixels, of each line of text in a picture [h, w, 3] RGB."""
        ...


def check_ocr(config: ScoreConfig) -> None:
    """Check that the package of ``scores.ocr`` is installed.

    Raises:
        UsageError: The package is not installed.
    """
    package = _PACKAGES.get(config.ocr)
    if package is not None and importlib.util.find_spec(package) is None:
        raise UsageError(
            f"scores.ocr = {config.ocr} needs the package {package}, which is not installed:"
            f" pip install {package}, or set scores.ocr to none"
        )


@cache
def text_reader(name: str) -> TextReader:
    """Return this process's reader of an OCR package.

    Raises:
        UsageError: The name is not one of ``scores.ocr``.
    """
    if name == "rapidocr":
        return _RapidReader()
    if name == "easyocr":
        return _EasyReader()
    raise UsageError(f"scores.ocr = {name} is not known; use one of {', '.join(_PACKAGES)}, or none")


def ocr_scores(sample: ClipSample, reader: TextReader) -> dict[str, float]:
    """Return ``ocr_share``: the share of the picture inside text outlines, median of one picture per second."""
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
    """RapidOCR on the CPU; its models are part of the wheel."""

    def __init__(self) -> None:
        from rapidocr_onnxruntime import RapidOCR

        self._engine: Any = RapidOCR()

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        detections, _ = self._engine(np.ascontiguousarray(picture[..., ::-1]), use_cls=False)
        return [np.array(box, np.float64) for box, _, _ in detections or ()]


class _EasyReader:
    """EasyOCR on the CPU; it downloads its models unless they are in its cache."""

    def __init__(self) -> None:
        import easyocr

        self._engine: Any = easyocr.Reader(["en"], gpu=False, verbose=False)

    def __call__(self, picture: NDArray[np.uint8]) -> list[Polygon]:
        detections = self._engine.readtext(np.ascontiguousarray(picture))
        return [np.array(box, np.float64) for box, _, _ in detections]
