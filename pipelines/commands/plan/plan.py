"""Plan a cluster's steps from lengths alone: no GPU is needed, and no video is read.

WHAT is a dataset or a blend (its own mixture, from the index), or a workload: koala-wide, adaptiveload. The table shows
how long ranks wait for each other under each policy. More: docs/planning.md.

With --cascades each step is scheduled as cascades: text encoder, VAE and DiT, each with a degree, GPUs and a
start. The table shows the makespan of each planner beside a lower bound. WHAT may then also be arachne, the
case study of Arachne's paper, or hunyuan-720p:SAMPLESxGPUS. --trace FILE plans the cascades of explicit steps
as JSON: {"gpus": 64, "gpus_per_node": 8, "steps": [[{"frames": 81, "height": 720, "width": 1280}, {"tokens":
30000, "batch": 2}], ...]}; samples with tokens alone have cached latents. More: docs/cascade.md.

With --sampling WHAT is a published model (wan2.1-t2v-14b, wan2.1-t2v-1.3b, wan2.2-t2v-a14b, hunyuanvideo,
open-sora-1.2), or the model of a run: its configuration, its folder or a checkpoint. The table orders the layouts of
--world-size GPUs that sample one video. More: docs/latent-parallelism.md.
"""

import argparse
from pathlib import Path

from reelweave.loader.errors import UsageError
from reelweave.loader.simulation.workloads import WORKLOADS
from reelweave.pipelines.plans import cascades, mixture, sampling, steps
from reelweave.pipelines.plans.mixture import Mixture
from reelweave.pipelines.terminal.arguments import add_config, did_you_mean
from reelweave.pipelines.terminal.program import hint

_CASES = ("arachne", "hunyuan-720p")
_RANKS, _STEPS, _STEPS_OF_CASCADES = 16, 100, 4
_SAMPLING_GPUS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave plan`."""
    parser.add_argument("what", metavar="WHAT", nargs="?", help="dataset, blend or workload")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="plan the cascades of these steps (JSON)")
    parser.add_argument("--cascades", action="store_true", help="schedule each step as cascades")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help=f"number of data-parallel ranks; with --cascades, of GPUs (default: {_RANKS})",
    )
    parser.add_argument(
        "--microbatches",
        type=int,
        default=4,
        metavar="M",
        help="microbatches per rank and step (default: 4)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="K",
        help=f"number of steps to plan (default: {_STEPS}; with --cascades {_STEPS_OF_CASCADES})",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument(
        "--plan-out",
        type=Path,
        metavar="FILE",
        help="write the plan: steps as parquet, one row per microbatch; cascades as JSON",
    )
    add_config(
        parser,
        "YAML with the buckets of a dataset (default: those of its report)",
        overrides="one key of --config",
    )
    for_steps = parser.add_argument_group("step plans")
    steps.add_arguments(for_steps)
    for_cascades = parser.add_argument_group("cascades")
    cascades.add_arguments(for_cascades)
    for_sampling = parser.add_argument_group("sampling")
    for_sampling.add_argument(
        "--sampling",
        action="store_true",
        help="order the layouts that sample one video of a published model or of a run's",
    )
    sampling.add_arguments(for_sampling)
    parser.set_defaults(
        for_steps=tuple(for_steps._group_actions),
        for_cascades=tuple(for_cascades._group_actions),
        for_sampling=tuple(for_sampling._group_actions),
    )
    for name in ("--case", "--workload"):
        parser.add_argument(name, dest="moved", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Plan, and print the table of policies or of planners."""
    if options.moved:
        more = () if options.moved in WORKLOADS else ("--cascades",)
        raise UsageError(f"name what to plan without an option: {hint('plan', options.moved, *more)}")
    if options.sampling:
        if options.cascades or options.trace:
            raise UsageError("--cascades and --trace plan training; leave them out of --sampling")
        for actions in (options.for_steps, options.for_cascades):
            _refuse(options, actions, "does not go with --sampling")
        return sampling.run(options, _SAMPLING_GPUS if options.world_size is None else options.world_size)
    _refuse(options, options.for_sampling, "goes with --sampling")
    if (options.what is None) == (options.trace is None):
        raise UsageError("give either a DATASET, a blend or a WORKLOAD, or --trace FILE")
    if options.trace or options.cascades:
        return _cascades(options)
    _refuse(options, options.for_cascades, "goes with --cascades")
    ranks, count = _numbers(options, _STEPS)
    return steps.run(options, _mixture(options), ranks, count)


def _cascades(options: argparse.Namespace) -> int:
    _refuse(options, options.for_steps, "is for step plans, without --cascades")
    named = options.what is None or options.what.split(":")[0] in _CASES
    if not named:
        ranks, count = _numbers(options, _STEPS_OF_CASCADES)
        return cascades.run(options, steps.trace_of(_mixture(options), ranks, options.microbatches, count))
    for name in ("world_size", "steps", "config"):
        if getattr(options, name) is not None:
            what = options.what or f"--trace {options.trace}"
            raise UsageError(f"--{name.replace('_', '-')} is for datasets and workloads; {what} has its own")
    return cascades.run(options)


def _numbers(options: argparse.Namespace, steps: int) -> tuple[int, int]:
    """Return ranks and steps, as asked or by default."""
    ranks = _RANKS if options.world_size is None else options.world_size
    return ranks, steps if options.steps is None else options.steps


def _mixture(options: argparse.Namespace) -> Mixture:
    """Return the mixture that WHAT names: a workload, a dataset or a blend."""
    from reelweave.loader.blend import open_source
    from reelweave.loader.blend.selected import select, selection_counts
    from reelweave.pipelines.report.buckets import report_config
    from reelweave.pipelines.terminal.console import stderr

    if options.what in WORKLOADS:
        return mixture.workload(options.what, options.seed)
    if options.what.split(":")[0] in _CASES:
        raise UsageError(f"{options.what} is planned as cascades alone; add --cascades")
    hint = did_you_mean(options.what, [*WORKLOADS, *_CASES])
    if hint and not Path(options.what).exists():
        raise UsageError(f"{options.what} is neither a dataset nor a workload{hint}")
    config = report_config(options.what, options.config, options.set)
    source = select(open_source(options.what, config.storage), config.selection)
    for count in selection_counts(source):
        stderr().print(count.sentence, markup=False, soft_wrap=True)
    return mixture.dataset(options.what, source, config.buckets, options.seed)


def _refuse(options: argparse.Namespace, actions: tuple[argparse.Action, ...], why: str) -> None:
    for action in actions:
        if getattr(options, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[0]} {why}")
