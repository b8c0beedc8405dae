"""Arachne's tables by simulation: what its planner, its baselines and ours make of one stream of samples.

    python -m tests.bench.reproduce_arachne [--steps 50] [--only case|stages|ablation|scaling|mapper]
    python -m tests.bench.reproduce_arachne --picture docs/pictures/case_study.svg

Prints the tables of docs/reproduction.md and the mapper's of docs/placement.md, or draws the latter's case study. The
planner is all that differs: every plan is placed by the mapper, pays for its places and runs with the same noise.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from reelweave.train.cascade.baselines.flexsp import flexsp
from reelweave.train.cascade.baselines.genetic import genetic
from reelweave.train.cascade.costs.cost_model import CostModel, SampleShapes
from reelweave.train.cascade.placement.levels import NEITHER, Priorities
from reelweave.train.cascade.placement.mapper import place, placed_cost
from reelweave.train.cascade.placement.topology import PRESETS
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.scheduling.static import best_static, static
from reelweave.train.cascade.simulation import timeline
from reelweave.train.cascade.simulation.cases import DEGREES, HUNYUAN_720P, arachne, drawn_at_720p
from reelweave.train.cascade.simulation.simulate import Noise, execute, gain
from reelweave.train.cascade.simulation.timeline import Panel
from reelweave.train.cascade.simulation.trace import Cluster, Mapper, Planner, ReplaySummary, replay

KOALA = ((13, 0.0), (53, 0.108), (81, 0.469), (105, 0.704), (129, 1.0))
"""Frames and the share of the samples that have no more: what section V-C says of Koala, straight lines between."""
SHORT = ((13, 0.0), (57, 1.0))
"""At 1080p, evenly up to the 57 frames that fit; nothing is published of Lynx."""
SAMPLES_PER_GPU = 1 / 4
"""One microbatch for each data-parallel rank of SP4, as in the case study."""


class Stage(NamedTuple):
    """A stage of training: the tokens of a latent frame, the VAE's tiles of a picture, frames, and B."""

    tokens: int
    tiles: int
    frames: tuple[tuple[int, float], ...]
    batch: int


STAGES = {
    "1: 360p": Stage(23 * 40, 1, KOALA, 4),
    "2: 720p": Stage(45 * 80, 4, KOALA, 1),
    "3: 1080p": Stage(68 * 120, 9, SHORT, 1),
}
PAPER_S = {
    "1: 360p": ("22.07", "22.98", "23.76", "23.89"),
    "2: 720p": ("32.96", "34.29", "35.76", "37.09"),
    "3: 1080p": ("26.80", "27.78", "30.41", "31.89"),
}
"""Table III: whole, without inter-cascade, without intra-cascade, without the mapper."""


class Model(NamedTuple):
    """A DiT of Table II: billions of parameters, layers, hidden channels."""

    parameters: float
    layers: int
    channels: int


MODELS = {
    "Wan2.1 1.3B": Model(1.3, 30, 1536),
    "CogVideoX 5B": Model(5, 30, 1920),
    "HunyuanVideo 13B": Model(13, 60, 3072),
}


def planned(problem: Problem) -> Schedule:
    """Ours."""
    return plan(problem).schedule


def longest_first(problem: Problem) -> Schedule:
    """The best static plan when the samples of a step may be dealt to the ranks by their length."""
    found = best_static(problem)
    assert found is not None
    return found[0]


def as_they_come(degree: int) -> Planner:
    """A static plan whose ranks take the samples as they are drawn, as Megatron-LM and DeepSpeed do."""

    def planner(problem: Problem) -> Schedule:
        found = static(problem, degree, largest_first=False)
        assert found is not None
        return found

    return planner


def in_rounds(problem: Problem) -> Schedule:
    """FlexSP's way: a group of its own for each sample of a round, which all wait for."""
    found = flexsp(problem)
    assert found is not None
    return found


PLANNERS: dict[str, Planner] = {
    **{f"static SP{degree}, as they come": as_they_come(degree) for degree in (4, 8)},
    "static, longest first": longest_first,
    "FlexSP's rounds": in_rounds,
    "Arachne's GA": genetic,
    "ours": planned,
}
PAPER_CASE_S = {"static SP4, as they come": "58.6", "FlexSP's rounds": "45.2", "Arachne's GA": "31.4"}
PAPER_STAGE_3 = {
    "static SP4, as they come": "44.29 / 42.96",
    "FlexSP's rounds": "36.85, 33.6 % idle",
    "Arachne's GA": "26.80, 8.1 % idle",
}
"""Megatron-LM and DeepSpeed, FlexSP, Arachne: mean seconds of 33 iterations, of its artifact."""


def costs(stage: Stage, model: Model) -> CostModel:
    """HunyuanVideo's, fitted to the case study, in proportion to parameters and to layers times channels."""
    reference, dit = MODELS["HunyuanVideo 13B"], HUNYUAN_720P.dit
    wide = model.layers * model.channels / (reference.layers * reference.channels)
    assert HUNYUAN_720P.vae
    return HUNYUAN_720P.model_copy(
        update={
            "dit": dit.model_copy(
                update={
                    "linear_s": dit.linear_s * model.parameters / reference.parameters,
                    "square_s": dit.square_s * wide,
                    "exchanged_bytes": dit.exchanged_bytes * wide,
                }
            ),
            "vae": HUNYUAN_720P.vae.model_copy(update={"tiles_per_picture": stage.tiles}),
        }
    )


def drawn(stage: Stage, gpus: int, steps: int, most: int = 129) -> Iterator[SampleShapes]:
    """The samples of each step, of at most so many frames."""
    ends, shares = (np.array(column) for column in zip(*stage.frames, strict=True))
    reach = float(np.interp(min(most, ends[-1]), ends, shares))
    for step in range(steps):
        draws = np.random.default_rng([0, step]).random(round(gpus * SAMPLES_PER_GPU)) * reach
        frames = 13 + 4 * np.round((np.interp(draws, shares, ends) - 13) / 4).astype(np.int64)
        length = stage.tokens * (1 + (frames - 1) // 4)
        yield SampleShapes(np.full_like(frames, stage.batch), frames, length)


def measured(
    stage: Stage,
    planner: Planner,
    steps: int,
    gpus: int = 16,
    model: str = "HunyuanVideo 13B",
    mapper: Mapper = place,
    most: int = 129,
) -> ReplaySummary:
    """One planner on one stream."""
    topology = PRESETS["dgx-h100"].holding(gpus)
    cluster = Cluster(costs(stage, MODELS[model]), topology, gpus, DEGREES, memory_bytes=123_000 / 4)
    return ReplaySummary.of(replay(drawn(stage, gpus, steps, most), cluster, planner, mapper, Noise()))


def case(_: int) -> None:
    """The case study: makespans on 16 GPUs as planned (section I)."""
    problem = arachne()
    found = plan(problem)
    row("planner", "makespan s", "above the bound", "idle", "the paper's s")
    row(*["---"] * 5)
    for name, planner in PLANNERS.items():
        schedule = planner(problem)
        above = f"{schedule.makespan_s / found.bound_s - 1:+.1%}"
        row(name, f"{schedule.makespan_s:.2f}", above, f"{schedule.idle:.1%}", PAPER_CASE_S.get(name, ""))


def stages(steps: int) -> None:
    """Iteration time, idle share and spread of operations at each stage (Figs. 6, 7, 10, 11)."""
    columns = ("iteration s", "slower", "by work s", "by waiting s", "idle", "CV", "plan ms", "the paper's s")
    row("stage", "planner", *columns)
    row(*["---"] * (len(columns) + 2))
    for name, stage in STAGES.items():
        ours = measured(stage, planned, steps)
        for told, planner in PLANNERS.items():
            found = ours if planner is planned else measured(stage, planner, steps)
            slower = f"{found.iteration_s / ours.iteration_s - 1:+.0%}"
            why = gain(ours.iteration_s, ours.idle, found.iteration_s, found.idle)
            cells = (f"{found.idle:.1%}", f"{found.flops_cv:.2f}", f"{found.plan_ms:.0f}")
            paper = PAPER_STAGE_3.get(told, "") if stage is STAGES["3: 1080p"] else ""
            if told == "Arachne's GA" and not paper:
                paper = PAPER_S[name][0]
            row(
                name,
                told,
                f"{found.iteration_s:.2f}",
                slower,
                *(f"{part:+.2f}" for part in why),
                *cells,
                paper,
            )


def ablation(steps: int) -> None:
    """Our plans with parts of the mapper (Table III)."""
    mappers: dict[str, Mapper] = {
        "whole": place,
        "without inter-cascade": partial(place, priorities=Priorities(inter=False)),
        "without intra-cascade": partial(place, priorities=Priorities(intra=False)),
        "without mapper": partial(place, priorities=NEITHER),
    }
    row("stage", "mapper", "iteration s", "slower", "the paper's s", "slower")
    row(*["---"] * 6)
    for name, stage in STAGES.items():
        found = [measured(stage, planned, steps, mapper=mapper).iteration_s for mapper in mappers.values()]
        for told, own_s, paper_s in zip(mappers, found, PAPER_S[name], strict=True):
            paper = float(paper_s) / float(PAPER_S[name][0]) - 1
            row(name, told, f"{own_s:.2f}", f"{own_s / found[0] - 1:+.1%}", paper_s, f"{paper:+.1%}")


def scaling(steps: int) -> None:
    """Speed-up over the static plan in model, frames and cluster at stage 2 (Fig. 8)."""
    second = STAGES["2: 720p"]
    cases: dict[str, tuple[Callable[[Planner], ReplaySummary], str]] = {
        name: (partial(measured, second, steps=steps, model=name), told)
        for name, told in zip(MODELS, ("35 %", "", "43 %"), strict=True)
    }
    for most, told in ((53, "21 %"), (81, ""), (105, "35 %")):
        cases[f"at most {most} frames"] = (partial(measured, second, steps=steps, most=most), told)
    for gpus in (16, 32, 64):
        cases[f"{gpus} GPUs"] = (partial(measured, second, steps=steps, gpus=gpus), "30 to 40 %")
    names = list(PLANNERS)
    row("case", "ours, s", *(f"over {name}" for name in names[:-1]), "the paper's over Megatron-LM")
    row(*["---"] * (len(names) + 2))
    for name, (run, told) in cases.items():
        times = [run(planner).iteration_s for planner in PLANNERS.values()]
        row(name, f"{times[-1]:.2f}", *(f"{other / times[-1] - 1:+.0%}" for other in times[:-1]), told)


GROWING = ((4, 16), (16, 16), (16, 64), (64, 256), (256, 1024))
"""Samples and GPUs of plans for the mapper."""


def mapped(_: int) -> None:
    """The mapper on plans of growing size, and its time: of one core, the median of five.

    Columns are the levels weighted by seconds. The first counts cascades outside one node that would fit into one;
    GPU-seconds without a peer are priority 3; missed GPU-seconds are what DiTs do not share with what they need.
    """
    levels = ("outside one node s", "imbalance", "off rail", "distance", "missed", "hops")
    row("samples, GPUs", "GPUs by", *levels, "ms")
    row(*["---"] * (len(levels) + 3))
    for samples, gpus in GROWING:
        problem = arachne() if samples == 4 else drawn_at_720p(samples, gpus, seed=0)
        schedule, topology = plan(problem).schedule, PRESETS["dgx-h100"].holding(gpus)
        spent_ms = []
        for _ in range(5):
            began = time.process_time()
            placed = place(schedule, topology)
            spent_ms.append((time.process_time() - began) * 1e3)
        schedules = {
            "lowest number": place(schedule, topology, NEITHER),
            "planner": schedule,
            "mapper": placed,
        }
        for name, candidate in schedules.items():
            costs_by_level = (f"{level / 1e6:,.0f}" for level in placed_cost(candidate, topology))
            row(
                f"{samples}, {gpus}",
                name,
                *costs_by_level,
                f"{median(spent_ms):.0f}" if name == "mapper" else "",
            )


def picture(file: Path) -> None:
    """The case study as planned, and as it comes out with noise."""
    topology = PRESETS["dgx-h100"].holding(16)
    schedule = place(planned(arachne()), topology)
    executed = execute(schedule, Noise().factors(schedule, np.random.default_rng(0)))
    panels = [Panel("planned", schedule), Panel("executed, times 5 % off", executed)]
    title = "Arachne's case study: 13, 37, 105 and 113 frames on 16 GPUs"
    file.write_text(timeline.picture(panels, title, topology.gpus_per_node) + "\n")


def row(*cells: str) -> None:
    """A line of a table in Markdown."""
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = {"case": case, "stages": stages, "ablation": ablation, "scaling": scaling, "mapper": mapped}
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--only", choices=tables)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the case study instead")
    options = parser.parse_args()
    if options.picture:
        picture(options.picture)
        return
    for name, table in tables.items():
        if options.only in (None, name):
            print(f"\n{(table.__doc__ or '').splitlines()[0]}\n")
            table(options.steps)


if __name__ == "__main__":
    main()
