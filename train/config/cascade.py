"""How a run is trained by cascades; importing it loads no torch."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

Degree = Annotated[int, Field(ge=1)]


class CorrectionConfig(BaseModel, frozen=True, extra="forbid"):
    """How far measurements are believed."""

    iterations: int = Field(8, ge=1, description="latest iterations whose cascades count")
    prior: float = Field(
        2.0,
        ge=0,
        description="measurements of a module and degree that take its factor half of the way from 1 to what they say",
    )
    most: float = Field(3.0, gt=1, description="highest factor; its inverse is the lowest")
    slow: float = Field(1.15, gt=1, description="a GPU that takes this many times as long as others is slow")
    evidence: int = Field(8, ge=1, description="cascades that a GPU must have run to be called slow")


class CascadeConfig(BaseModel, frozen=True, extra="forbid"):
    """Plans and their execution (docs/cascade-execution.md)."""

    degrees: Annotated[tuple[Degree, ...], Field(min_length=1)] | None = Field(
        None,
        description="numbers of ranks that a DiT may run on; null: 1, 2, 4, 8 and so on up to all ranks, or 1 alone"
        " where the model cannot be cut",
    )
    costs: Path | None = Field(
        None,
        description="measured costs, JSON of `train.cascade.costs.cost_model`; null: operations at a nominal rate,"
        " no memory",
    )
    memory_gib: float | None = Field(
        None,
        gt=0,
        description="memory of a GPU that plans keep to, by the costs; null: all that it has, on a CPU any",
    )
    topology: str | None = Field(
        None,
        description="of the cluster: dgx-h100, dgx-h200, pcie, single, or a file, JSON of"
        " train.cascade.placement.topology.Topology; null: one node, and GPUs as the planner counts them",
    )
    handoff_mib: float | None = Field(
        None, gt=0, description="bytes of a rank for handoffs at once, in MiB; null: what the plan needs"
    )
    lookahead: int = Field(
        2, ge=0, description="cascades ahead of its own that a rank already receives the inputs of"
    )
    groups: int = Field(64, ge=1, description="process groups that a rank keeps from step to step")
    gradient_sum: Literal["all", "representatives"] = Field(
        "all",
        description="how gradients become those of all samples: partial ones summed once over all ranks, or Arachne's"
        " representatives (replicas alone; in steps where they would count a sample twice, as all)",
    )
    correction: CorrectionConfig | None = Field(
        None,
        description="plan with what cascades have taken, and around ranks that are slow; null: with the costs alone, so"
        " that a run's plans are the same every time",
    )
    timeline_every_steps: int | None = Field(
        None, ge=1, description="steps between pictures of plan and execution in OUT/timeline; null: none"
    )
