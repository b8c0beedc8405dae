"""Page of a workload, from its numbers."""

from typing import Any

from reelweave.loader.buckets.tokens import Compression
from reelweave.pipelines.report.numbers.workload import SAMPLES, WorkloadConfig
from reelweave.pipelines.report.sections.buckets import bucket_note, bucket_section
from reelweave.pipelines.report.sections.cost_fit import cost_fit_section
from reelweave.pipelines.report.sections.steps import steps_section
from reelweave.pipelines.report.web.template import render


def workload_page(numbers: dict[str, Any], config: WorkloadConfig) -> str:
    """Render the page of a workload.

    Args:
        numbers: result of `reelweave.pipelines.report.numbers.workload.workload_numbers`.
        config: budgets and cluster.
    """
    buckets, budgets = numbers["buckets"], config.buckets
    compression = Compression.model_validate(numbers["compression"])
    note = bucket_note(budgets, compression, numbers["text_tokens"][1])
    return render(
        "workload.html",
        title=numbers["workload"],
        subtitle=f"{numbers['about']}; the table counts a stream of {SAMPLES:,} samples",
        notes=[],
        figures=[
            (f"{len(buckets)}", "buckets"),
            (f"{numbers['lengths']['mean']:,.0f}", "tokens a sample"),
            (f"{numbers['lengths']['span']:.3g} x", "longest over shortest"),
        ],
        bucket_section=bucket_section(buckets, numbers["lengths"], budgets, note),
        steps_section=steps_section(numbers["plan"], buckets),
        cost_fit_section=cost_fit_section(numbers["cost_fit"]),
    )
