"""Cost fits of measured shapes: table, measurements with fitted curves, and errors of prediction."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from reelweave.loader.buckets.cost import Cost, LinearQuadraticCost, MeasuredCost, seconds
from reelweave.pipelines.report.numbers.cost_fit import CostFitFigures, ShapeFigures, fit_words
from reelweave.pipelines.report.web.chart import Chart
from reelweave.pipelines.report.web.curves import points_and_curves

_MOST_BATCHES, _CURVE_POINTS = 6, 40


def cost_fit_section(figures: CostFitFigures | None) -> dict[str, Any] | None:
    """Return what `buckets.html` shows of cost fits; None without measured shapes."""
    if figures is None:
        return None
    return {
        "note": f"{figures.microbatches:,} measured microbatches of {len(figures.shapes):,} shapes (B, S). The"
        " median of a shape counts. Errors are those of shapes of lengths that the fit has not seen.",
        "trusted": figures.trusted,
        "words": fit_words(figures),
        "columns": ("cost", "R^2", "error, mean", "worst", "at B, S", "95 % interval", "time lost", "doubts"),
        "rows": [
            (
                cost_formula(fit.cost),
                f"{fit.r2:.4f}",
                _percent(fit.mean_error),
                _percent(fit.worst_error),
                ", ".join(map(str, fit.worst_cell)) if math.isfinite(fit.worst_error) else "",
                f"+- {fit.interval:.1%}" if math.isfinite(fit.interval) else "",
                f"{fit.lost:.1%}",
                "; ".join(fit.doubts) or "none",
            )
            for fit in figures.fits.values()
        ],
        "charts": [_measured_chart(figures), *_errors(figures)],
    }


def _measured_chart(figures: CostFitFigures) -> Chart:
    """Return the measured times over S with the curve of the first fit, by B."""
    shapes = figures.shapes
    batches = sorted({shape.batch for shape in shapes})[:_MOST_BATCHES]
    cost = figures.decisive.cost
    points, curves = [], {}
    for batch in batches:
        batch_shapes = [shape for shape in shapes if shape.batch == batch]
        reach = [shape.length for shape in batch_shapes]
        lengths = np.geomspace(min(reach), max(reach), _CURVE_POINTS)
        series = f"B = {batch}"
        curves[series] = list(zip(lengths.tolist(), seconds(cost, batch, lengths).tolist(), strict=True))
        points += [
            {
                "x": shape.length,
                "y": shape.step_s,
                "label": f"B = {batch}, S = {shape.length:,}",
                "series": series,
            }
            for shape in batch_shapes
        ]
    note = "Points are measured, curves are the fit of a + b*B*S + c*B*S^2."
    return points_and_curves(
        "fit", "Seconds of a microbatch", points, curves, "S, tokens", "seconds", note, "of"
    )


def _errors(figures: CostFitFigures) -> list[Chart]:
    """Return the errors of each fit over S: residuals, and errors of lengths that it has not seen."""
    charts = []
    kinds: list[tuple[Callable[[ShapeFigures], Mapping[str, float | None]], str, str]] = [
        (lambda shape: shape.predicted_s, "fit-residuals", "Residuals of the fits"),
        (lambda shape: shape.held_out_s, "fit-held-out", "Errors of lengths that a fit has not seen"),
    ]
    for predict, name, title in kinds:
        # A point for each measured shape and fit, in percent of the measured time.
        points = [
            {
                "x": shape.length,
                "y": 100 * (predicted / shape.step_s - 1),
                "label": f"B = {shape.batch}, S = {shape.length:,}",
                "series": fit,
            }
            for fit in figures.fits
            for shape in figures.shapes
            if (predicted := predict(shape)[fit]) is not None
        ]
        if points:
            # The line of no error, over all lengths.
            reach = [shape.length for shape in figures.shapes]
            curves = {"measured": [(min(reach), 0.0), (max(reach), 0.0)]}
            charts.append(
                points_and_curves(
                    name, title, points, curves, "S, tokens", "percent", series_title="fit", log_y=False
                )
            )
    return charts


def cost_formula(cost: Cost) -> str:
    """Return the seconds of a microbatch as a formula of B and S."""
    if isinstance(cost, MeasuredCost):
        return f"{cost_formula(cost.base)}, samples times {len(cost.lengths)} factors by S"
    if isinstance(cost, LinearQuadraticCost):
        return f"{cost.fixed_s:.3g} + {cost.token_s:.3g} * B*S + {cost.square_s:.3g} * B*S^2"
    return f"{cost.fixed_s:.3g} + {cost.scale_s:.3g} * B*S^{cost.exponent:g}"


def _percent(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else ""
