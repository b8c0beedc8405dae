"""Configuration of parallelism; importing it loads no torch."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from reelweave.loader.settings import Except, Settings
from reelweave.loader.stream.stealing.step_split import WorkStealingConfig

AttentionBackend = Literal["auto", "cudnn", "flash", "flash3", "flash4"]
Degree = Annotated[int, Field(ge=1)]


class ParallelConfig(Settings):
    """Degrees of parallelism, whose product is the number of ranks; by default every rank is a replica."""

    READ_WITH: ClassVar = {
        "activation_memory_budget": ("activation_checkpointing", ("memory_budget",)),
        "reduce_gradients": ("dp_shard", Except(1)),
        "pp_schedule": ("pp", Except(1)),
    }

    dp_replicate: Degree | Literal["rest"] = Field(
        "rest",
        description="number of replicas of the whole state; rest: as many as the ranks allow",
    )
    dp_shard: Degree | Literal["rest"] = Field(
        1,
        description="ranks per replica that train on different samples and shard the state; rest: all remaining ranks",
    )
    shard: Literal["weights", "optimizer"] = Field(
        "weights",
        description="sharded state: weights, gradients and optimizer state (FSDP, HSDP), or optimizer state alone"
        " (ZeRO-1)",
    )
    reduce_gradients: Literal["microbatch", "step"] = Field(
        "microbatch",
        description="moment of FSDP's gradient reduction: after each microbatch, or once in a step. In the latter"
        " case every rank holds whole gradients in between, 4 bytes per trained weight. HSDP sums between replicas"
        " once in a step anyway",
    )
    ring: int = Field(
        1, ge=1, description="context parallelism: ranks that pass keys and values around a ring"
    )
    ulysses: int = Field(1, ge=1, description="context parallelism: ranks that exchange attention heads")
    tp: int = Field(1, ge=1, description="tensor parallelism: ranks that shard each matrix of a block")
    pp: int = Field(1, ge=1, description="pipeline parallelism: stages that divide the blocks")
    pp_schedule: Literal["1f1b", "gpipe"] = Field(
        "1f1b",
        description="pipeline schedule: 1f1b: backward as early as possible, with few activations in memory; gpipe:"
        " backward after all forwards",
    )
    activation_checkpointing: Literal["none", "full", "offload", "selective", "memory_budget"] = Field(
        "none",
        description="activations recomputed in the backward: none, all, all with the inputs of blocks on the host"
        " (offload), all but matrix products and attention, or as many as activation_memory_budget requires",
    )
    activation_memory_budget: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="memory_budget: share of a compiled block's activations to keep",
    )
    text_encoder: Literal["auto", "whole", "shard", "offload"] = Field(
        "auto",
        description="memory of a frozen text encoder. whole: all of it on every rank. shard: divided over the ranks"
        " of a node, which gather it layer by layer and so encode in step. offload: on the host, copied to the GPU"
        " layer by layer. auto: shard under FSDP, whose ranks run in step anyway, and whole otherwise",
    )
    attention: AttentionBackend = Field(
        "auto",
        description="implementation of attention that a GPU takes first. auto: PyTorch's choice (cuDNN on Hopper and"
        " Blackwell, else FlashAttention 2). FlashAttention 3 and 4 come from packages of their own",
    )
    compile: bool = Field(False, description="compile each block with torch.compile")
    schedule: Literal["static", "cascade"] = Field(
        "static",
        description="assignment of work to ranks: static: each rank runs the microbatches it reads; cascade: a plan"
        " per step (docs/cascade-execution.md)",
    )
    work_stealing: WorkStealingConfig | None = Field(
        None,
        description="let ranks that are free run small pieces of a step that late ranks have not begun; needs replicas"
        " (dp_shard=1 or shard=optimizer) and stream.microbatches of 2 or more. Noise and rounding of a step then"
        " depend on which ranks were free; null: each rank runs what the plan gives it",
    )

    @property
    def against_work_stealing(self) -> str:
        """Why ranks of this layout cannot share steps; empty if they can."""
        if self.schedule == "cascade":
            return "work_stealing is for schedule static: cascades follow a plan of all ranks"
        if self.dp_shard != 1 and self.shard == "weights":
            return (
                "work_stealing needs ranks that meet once in a step, and those of FSDP meet in every block: take"
                " dp_shard=1, or shard=optimizer (ZeRO-1)"
            )
        for name in ("ring", "ulysses", "tp", "pp"):
            if getattr(self, name) > 1:
                return f"work_stealing is for ranks that hold the whole model: leave {name} at 1"
        return ""

    @property
    def memory_budget(self) -> float:
        """Share of a compiled block's activations to keep."""
        return self.activation_memory_budget if self.activation_checkpointing == "memory_budget" else 1.0

    @model_validator(mode="after")
    def _plans_are_free(self) -> "ParallelConfig":
        if self.schedule == "static":
            return self
        if self.reduce_gradients == "step" and self.dp_shard != 1:
            raise ValueError(
                "schedule cascade reduces the gradients of shards behind each DiT: leave reduce_gradients at microbatch"
            )
        if self.text_encoder == "shard":
            raise ValueError(
                "schedule cascade encodes text on the ranks of its plan alone, so text_encoder cannot be shard: take"
                " offload or whole"
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
    def _reduced_by_fsdp(self) -> "ParallelConfig":
        if self.reduce_gradients == "step" and self.shard == "optimizer":
            raise ValueError(
                "reduce_gradients=step is for shard=weights (FSDP); with shard=optimizer gradients are reduced once in"
                " a step already: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _stolen_by_replicas(self) -> "ParallelConfig":
        if self.work_stealing is not None and self.against_work_stealing:
            raise ValueError(self.against_work_stealing)
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
