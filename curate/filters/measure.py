"""All scores of a clip, and their versions: what tells which of them an entry of the ledger holds."""

from collections.abc import Mapping, Set

from reelweave.curate.filters.bars import Bars, bars_scores, find_bars, without_bars
from reelweave.curate.filters.light import light_scores
from reelweave.curate.filters.motion import motion_scores
from reelweave.curate.filters.ocr import ocr_scores
from reelweave.curate.filters.overlay import overlay_scores
from reelweave.curate.filters.sample import ClipSample, shape_scores
from reelweave.curate.filters.sharpness import sharpness_scores
from reelweave.curate.filters.sound import sound_scores
from reelweave.curate.filters.still import still_scores
from reelweave.curate.filters.still_edges import StillEdges, graphic_scores
from reelweave.loader.errors import RunError

FIRST = frozenset(
    {
        "duration_s", "short_side_px", "aspect", "fps", "black_share", "white_share", "frozen_share", "slideshow",
        "duplicate_share", "motion", "motion_local", "motion_source", "sharpness", "luminance", "contrast",
        "crushed_share", "clipped_share", "colourfulness", "flicker", "bar_top_px", "bar_bottom_px", "bar_left_px",
        "bar_right_px", "bars_share", "text_peak", "text_share", "overlay_share", "ocr_share", "has_audio",
        "silent_share", "loudness_dbfs",
    }
)  # fmt: skip
"""Scores that every entry of the ledger was measured for. It does not change."""

ADDED: dict[str, int] = {
    "motion": 2, "motion_local": 2, "frozen_share": 2, "slideshow": 2, "flicker": 2,
    "silent_share": 2, "ocr_share": 2, "ocr_chars": 1, "static_graphic": 1, "static_edges": 1,
}  # fmt: skip
"""Version of each score that came later, or whose values changed. Clips cut before are measured from their bytes."""


_DIGITS = 6


def scores(sample: ClipSample) -> dict[str, float]:
    """Return all scores of a clip by name, rounded to six decimals; a score that could not be measured is left out.

    docs/filters.md defines each score and its useful values.
    """
    bars = find_bars(sample.pictures)
    inner = without_bars(sample, bars)
    named_scores = {
        **shape_scores(sample),
        **light_scores(inner),
        **still_scores(inner),
        **motion_scores(inner),
        **sharpness_scores(inner),
        **bars_scores(sample, bars),
        **overlay_scores(inner),
        **sound_scores(sample),
    }
    if sample.text is not None:
        named_scores |= ocr_scores(sample.text)
    if sample.edges is not None:
        named_scores |= graphic_scores(_inside(sample.edges, sample, bars))
    check_names(named_scores.keys())
    return {name: round(value, _DIGITS) for name, value in named_scores.items()}


def _inside(edges: StillEdges, sample: ClipSample, bars: Bars) -> StillEdges:
    height, width = sample.pictures.shape[1:3]
    return edges.inside(
        (bars.left / width, 1 - bars.right / width), (bars.top / height, 1 - bars.bottom / height)
    )


def lacking(measured: Mapping[str, int]) -> dict[str, int]:
    """Return the scores, with their versions, that clips lack which were measured for others.

    Args:
        measured: Value of `ADDED` when they were measured.
    """
    return {name: version for name, version in ADDED.items() if measured.get(name) != version}


def never_measured(measured: Mapping[str, int]) -> set[str]:
    """Return the scores of `lacking` of which clips have no value, not even of an earlier version."""
    return {name for name in lacking(measured) if name not in measured and name not in FIRST}


def check_names(names: Set[str]) -> None:
    """Refuse scores that clips of finished datasets would lack for ever, since nothing tells who has them.

    Raises:
        RunError: a score has no version.
    """
    if unknown := names - FIRST - ADDED.keys():
        raise RunError(
            f"the score {min(unknown)} has no version, so that finished datasets would lack it: add it to ADDED in"
            " curate/filters/measure.py"
        )
