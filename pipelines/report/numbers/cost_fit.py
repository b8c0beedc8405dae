"""Numbers of cost fits: measured shapes, what each fit predicts of them, and whether it can be trusted."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reelweave.loader.buckets.assignment import Budgets
from reelweave.loader.buckets.cost import seconds
from reelweave.loader.buckets.cost_fit import (
    CostFit,
    Timings,
    fit_linear_quadratic,
    fit_power,
    held_out_s,
    linear_quadratic,
    per_shape,
    power,
)

_FITS = {
    "linear_quadratic": (fit_linear_quadratic, linear_quadratic),
    "power": (fit_power, power),
}


@dataclass(frozen=True)
class ShapeFigures:
    """A measured shape, and what each fit says of it.

    Attributes:
        batch: B.
        length: S.
        step_s: median of the measured seconds.
        measurements: number of measurements.
        predicted_s: seconds by the name of the fit.
        held_out_s: seconds by a fit without any shape of this length; None with fewer than two lengths.
    """

    batch: int
    length: int
    step_s: float
    measurements: int
    predicted_s: dict[str, float]
    held_out_s: dict[str, float | None]


@dataclass(frozen=True)
class CostFitFigures:
    """Fits of measured step times.

    Attributes:
        microbatches: number of measurements.
        shapes: measured shapes.
        fits: fits by name.
        used: whether the report's buckets follow from the fit of `linear_quadratic`.
    """

    microbatches: int
    shapes: list[ShapeFigures]
    fits: dict[str, CostFit]
    used: bool

    @property
    def decisive(self) -> CostFit:
        """Fit that may decide batch sizes."""
        return self.fits["linear_quadratic"]

    @property
    def trusted(self) -> bool:
        """True where no doubt keeps that fit from deciding batch sizes."""
        return not self.decisive.doubts

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "microbatches": self.microbatches,
            "shapes": [asdict(shape) for shape in self.shapes],
            "fits": {name: fit_values(fit) for name, fit in self.fits.items()},
            "trusted": self.trusted,
            "used": self.used,
        }


def cost_fit_numbers(timings: Timings, budgets: Budgets) -> CostFitFigures:
    """Fit measured step times, and predict them.

    Args:
        timings: measured microbatches.
        budgets: budgets of the report's buckets.
    """
    # Fits over all shapes; each shape is also predicted by a fit without its length.
    medians, first = per_shape(timings)
    fits = {name: judge(timings) for name, (judge, _) in _FITS.items()}
    several = len(np.unique(timings.length)) > 1
    held_out = {
        name: held_out_s(timings, fit)[first].tolist() if several else [None] * len(first)
        for name, (_, fit) in _FITS.items()
    }
    predicted = {
        name: seconds(fit.cost, medians.batch, medians.length).tolist() for name, fit in fits.items()
    }
    # A row for each measured shape, with the median of its times.
    shapes = np.stack([timings.batch, timings.length])
    counts = np.unique(shapes, axis=1, return_counts=True)[1].tolist()
    columns = (medians.batch.tolist(), medians.length.tolist(), medians.step_s.tolist(), counts)
    return CostFitFigures(
        microbatches=len(timings.step_s),
        shapes=[
            ShapeFigures(
                *shape,
                predicted_s={name: values[index] for name, values in predicted.items()},
                held_out_s={name: values[index] for name, values in held_out.items()},
            )
            for index, shape in enumerate(zip(*columns, strict=True))
        ],
        fits=fits,
        used=budgets.cost == fits["linear_quadratic"].cost,
    )


def fit_values(fit: CostFit) -> dict[str, Any]:
    """Return a fit with its diagnostics as plain values; None for those that too few lengths leave unknown."""
    finite = {name: getattr(fit, name) for name in ("mean_error", "worst_error", "interval")}
    return {
        "cost": fit.cost.model_dump(),
        "r2": fit.r2,
        **{name: value if math.isfinite(value) else None for name, value in finite.items()},
        "worst_cell": list(fit.worst_cell),
        "lost": fit.lost,
        "doubts": list(fit.doubts),
    }


def fit_words(figures: CostFitFigures) -> list[str]:
    """Return in words whether the fit of a cost in seconds can be trusted, and whether the buckets follow from it."""
    fit = figures.decisive
    if fit.doubts:
        return [
            f"Do not trust a cost fitted to these {figures.microbatches} microbatches: {'; '.join(fit.doubts)}.",
            "The buckets stay as they were.",
        ]
    return [
        "The cost a + b*B*S + c*B*S^2 can be trusted: shapes of lengths it has not seen are"
        f" {fit.mean_error:.1%} off on average and {fit.worst_error:.1%} at worst, and 128 ranks lose"
        f" {fit.lost:.1%} of their time to its errors.",
        "The buckets follow from it."
        if figures.used
        else "The buckets do not follow from it: give --target-step-s.",
    ]
