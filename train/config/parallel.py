"""How a run lies on its ranks; importing it loads no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

Degree = Annotated[int, Field(ge=1)]


class ParallelConfig(BaseModel, frozen=True, extra="forbid"):
    """The layout of a run: the degrees multiply to the number of ranks, which are all replicas by default."""

    dp_replicate: Degree | Literal["rest"] = Field(
        "rest",
        description="groups of ranks that each hold the whole state; rest: as many as there are ranks for",
    )
    dp_shard: Degree | Literal["rest"] = Field(
        1, description="ranks of such a group, which train on different samples and divide the state; or rest"
    )
    shard: Literal["weights", "optimizer"] = Field(
        "weights",
        description="what they divide: weights, gradients and optimizer state (FSDP, HSDP), or the optimizer's state"
        " alone (ZeRO-1)",
    )
    ring: int = Field(1, ge=1, description="context parallel: ranks that pass keys and values round a ring")
    ulysses: int = Field(1, ge=1, description="context parallel: ranks that exchange attention heads")
    tp: int = Field(1, ge=1, description="tensor parallel: ranks that divide each matrix of a block")
    pp: int = Field(1, ge=1, description="pipeline parallel: stages that divide the blocks")
    pp_schedule: Literal["1f1b", "gpipe"] = Field(
        "1f1b",
        description="when a stage runs backwards: as soon as it can, and keeps few activations (1F1B), or"
        " behind all forwards (GPipe)",
    )
    activation_checkpointing: Literal["none", "full", "selective", "memory_budget"] = Field(
        "none",
        description="what a block computes again in the backward: nothing, everything, all but matrix products and"
        " attention, or what brings activations down to activation_memory_budget",
    )
    activation_memory_budget: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="share of a compiled block's activations that is kept, with memory_budget",
    )
    compile: bool = Field(False, description="compile each block with torch.compile")
    schedule: Literal["static", "cascade"] = Field(
        "static",
        description="what runs where: static, each rank the microbatches that it reads; cascade, each step by a plan of"
        " its own (docs/cascade-execution.md)",
    )

    @property
    def memory_budget(self) -> float:
        """Share of a compiled block's activations that is kept."""
        return self.activation_memory_budget if self.activation_checkpointing == "memory_budget" else 1.0

    @model_validator(mode="after")
    def _plans_are_free(self) -> "ParallelConfig":
        if self.schedule == "static":
            return self
        if self.shard == "weights" and self.dp_shard != 1:
            raise ValueError(
                "schedule cascade lets ranks run apart, and with shard weights they gather in step: set shard to"
                " optimizer, or dp_shard to 1"
            )
        for name in ("ring", "ulysses", "tp", "pp"):
            if getattr(self, name) > 1:
                raise ValueError(
                    f"schedule cascade gives every microbatch ranks by its plan: leave {name} at 1 (degrees of"
                    " sequences: train.cascade.degrees)"
                )
        if self.compile:
            raise ValueError(
                "schedule cascade would compile blocks anew for every group: leave compile false"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> "ParallelConfig":
        if self.dp_replicate == self.dp_shard == "rest":
            raise ValueError("dp_replicate and dp_shard cannot both be the rest: give one of them a number")
        if self.activation_checkpointing == "memory_budget" and not self.compile:
            raise ValueError(
                "activation_checkpointing=memory_budget needs compile=true: the compiler decides"
            )
        return self
