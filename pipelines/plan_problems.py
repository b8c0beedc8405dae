"""What `reelweave plan` plans: the iteration of a case, or those of a trace."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from loader.errors import UsageError
from pipelines.files import read_text

if TYPE_CHECKING:
    from train.cascade.costs import CostModel, Links, Samples
    from train.cascade.problem import Problem


class Posed(NamedTuple):
    """Iterations to plan.

    Attributes:
        problems: one for each step.
        samples: that each of them is made of.
        costs: that they are counted with.
    """

    problems: "list[Problem]"
    samples: "list[Samples]"
    costs: "CostModel"


def posed(options: argparse.Namespace, links: "Links | None") -> Posed:
    """The iterations that the options name.

    Args:
        options: of the command.
        links: of the cluster; None: those of the costs, with as many GPUs in a node as the trace says.

    Raises:
        UsageError: an option or a file is wrong; names the step that cannot run.
    """
    from train.cascade.cases import DEGREES, HUNYUAN_720P, MEMORY_TOKENS, case_samples

    costs, memory_bytes = HUNYUAN_720P, float(MEMORY_TOKENS)
    degrees: tuple[int, ...] = DEGREES
    if options.case:
        for name in ("costs", "degrees"):
            if getattr(options, name):
                raise UsageError(f"--{name} goes with --trace: a case has its own")
        samples, gpus = case_samples(options.case, options.seed)
        steps = [samples]
    else:
        from loader.tokens import COMPRESSIONS
        from train.cascade.trace import read_trace

        trace = read_trace(options.trace)
        if options.costs:
            costs, memory_bytes = _cost_model(options.costs), options.memory_gib * 2**30
        degrees = _degrees(options.degrees) if options.degrees else DEGREES
        links = links or costs.links.model_copy(update={"gpus_per_node": trace.gpus_per_node})
        compression = costs.compression or COMPRESSIONS["hunyuanvideo"]
        steps, gpus = trace.samples(compression, costs.text_tokens), trace.gpus
    costs = costs.model_copy(update={"links": links}) if links else costs
    problems = []
    for number, samples in enumerate(steps):
        try:
            problems.append(costs.problem(samples, gpus, degrees, memory_bytes))
        except UsageError as error:
            named = f"{options.trace}, step {number}" if options.trace else f"--case {options.case}"
            raise UsageError(f"{named}: {error}") from error
    return Posed(problems, steps, costs)


def _cost_model(file: Path) -> "CostModel":
    from train.cascade.costs import CostModel

    try:
        return CostModel.model_validate_json(read_text(file, "--costs"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"--costs {file}{f', key {where}' if where else ''}: {first['msg']}") from error


def _degrees(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() and 0 < int(part) <= 65_536 for part in parts):
        raise UsageError(f"--degrees {text}: give whole numbers such as 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))
