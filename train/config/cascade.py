"""Configuration of cascade training; importing it loads no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from reelweave.loader.settings import Settings

Degree = Annotated[int, Field(ge=1)]


class CorrectionConfig(Settings):
    """Online correction of the cost model by measured cascades."""

    iterations: int = Field(
        8, ge=1, description="number of latest iterations whose cascades enter the correction"
    )
    prior: float = Field(
        2.0,
        ge=0,
        description="shrinkage: with this many measurements of a module and degree, its factor moves half way from 1"
        " to the measured ratio",
    )
    most: float = Field(3.0, gt=1, description="largest correction factor; its inverse is the smallest")
    slow: float = Field(
        1.15, gt=1, description="a GPU is a straggler if it takes this many times as long as the others"
    )
    evidence: int = Field(
        8, ge=1, description="cascades a GPU must have run before it can be called a straggler"
    )
    reorders: int = Field(
        8,
        ge=0,
        description="maximum number of times that a run makes its groups anew, with lasting stragglers together in"
        " few groups",
    )


class CascadeConfig(Settings):
    """Planning and execution of cascades (docs/cascade-execution.md)."""

    degrees: Annotated[tuple[Degree, ...], Field(min_length=1)] | None = Field(
        None,
        description="numbers of ranks a DiT may run on; null: powers of two up to all ranks, or 1 where the model"
        " supports no context parallelism",
    )
    costs: Path | None = Field(
        None,
        description="file of measured costs, JSON of `reelweave.train.cascade.costs.cost_model`; null: FLOPs"
        " at a nominal rate, no memory",
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        description="memory of one GPU that plans may use, as the cost model predicts it. null: the memory that"
        " CUDA context and communicators leave on the smallest GPU; unlimited on a CPU",
    )
    topology: str | None = Field(
        None,
        description="cluster topology; handoffs prefer to stay in a node. dgx-h100, dgx-h200, pcie, single, or a YAML"
        " or JSON file of reelweave.train.cascade.placement.topology.Topology, as for `reelweave plan`. null: one node"
        " of all ranks",
    )
    handoff_mib: float | None = Field(
        None,
        gt=0,
        description="buffer for tensors in transit between ranks, in MiB per rank; null: what the plan needs",
    )
    lookahead: int = Field(
        2, ge=0, description="number of later cascades whose inputs a rank receives in advance"
    )
    gradient_sum: Literal["all", "representatives"] = Field(
        "all",
        description="gradient reduction. all: one all-reduce of partial gradients over all ranks. representatives:"
        " Arachne's representatives, for replicas only. Steps in which they would count a sample twice use all",
    )
    correction: CorrectionConfig | None = Field(
        None,
        description="correct the cost model by measured cascades and plan around stragglers; null: plan by the cost"
        " model alone, so that plans are reproducible",
    )
    timeline_every_steps: int | None = Field(
        None,
        ge=1,
        description="steps between charts of the planned and the measured timeline in OUT/timeline; null: none",
    )
