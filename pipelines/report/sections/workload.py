"""Page of a workload, from its numbers."""

from reelweave.pipelines.report.numbers.workload import SAMPLES, WorkloadConfig, WorkloadFigures
from reelweave.pipelines.report.sections.buckets import bucket_note, bucket_section
from reelweave.pipelines.report.sections.cost_fit import cost_fit_section
from reelweave.pipelines.report.sections.steps import steps_section
from reelweave.pipelines.report.web.template import render


def workload_page(figures: WorkloadFigures, config: WorkloadConfig) -> str:
    """Render the page of a workload.

    Args:
        figures: result of `reelweave.pipelines.report.numbers.workload.workload_numbers`.
        config: budgets and cluster.
    """
    buckets, budgets = figures.buckets, config.buckets
    note = bucket_note(budgets, figures.compression, figures.text_tokens[1])
    return render(
        "workload.html",
        title=figures.workload,
        subtitle=f"{figures.about}; the table counts a stream of {SAMPLES:,} samples",
        notes=[],
        figures=[
            (f"{len(buckets)}", "buckets"),
            (f"{figures.lengths.mean:,.0f}", "tokens a sample"),
            (f"{figures.lengths.span:.3g} x", "longest over shortest"),
        ],
        bucket_section=bucket_section(buckets, figures.lengths, budgets, note),
        steps_section=steps_section(figures.plan, buckets),
        cost_fit_section=cost_fit_section(figures.cost_fit),
    )
