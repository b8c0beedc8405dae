"""What is told and recorded while training; importing it loads no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, PositiveFloat


class StepWindow(BaseModel, frozen=True, extra="forbid"):
    """Some steps of some ranks."""

    from_step: int = Field(10, ge=1, description="first optimizer step that is recorded, counted from 1")
    steps: int = Field(3, ge=1, le=1000, description="how many")
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="the ranks that record"
    )

    @property
    def last_step(self) -> int:
        """The last one that is recorded."""
        return self.from_step + self.steps - 1


class ProfileConfig(StepWindow, frozen=True, extra="forbid"):
    """Traces by torch.profiler, in ``profiles`` of the run's folder."""

    from_step: int = Field(
        10,
        ge=2,
        description="first optimizer step that is recorded; the step before it warms the profiler up",
    )
    shapes: bool = Field(False, description="record the shapes of operators' inputs")
    stacks: bool = Field(False, description="record where in the source operators were called; slow")
    memory: bool = Field(False, description="record what operators allocate and free")


class MemorySnapshotConfig(StepWindow, frozen=True, extra="forbid"):
    """What lies in a GPU's memory and where it was allocated, in ``memory`` of the run's folder; needs a GPU."""

    max_events: int = Field(100_000, ge=1, description="newest allocations and frees that are kept")


class WandbConfig(BaseModel, frozen=True, extra="forbid"):
    """Weights & Biases; needs the extra ``wandb``. Who you are it takes from its own settings."""

    project: str = Field(min_length=1, description="that the run belongs to")
    name: str | None = Field(None, description="of the run; null lets wandb invent one")
    entity: str | None = Field(None, description="user or team; null is your default one")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: keep everything in the run's folder, for wandb sync"
    )


class LogConfig(BaseModel, frozen=True, extra="forbid"):
    """What is told while training; metrics.jsonl gets a line at every step."""

    every_steps: int = Field(10, ge=1, description="steps between lines on the console and in losses.jsonl")
    tensorboard: bool = Field(True, description="write TensorBoard events beside metrics.jsonl")
    wandb: WandbConfig | None = Field(None, description="tell Weights & Biases, too; null does not")
    peak_tflops: PositiveFloat | Literal["measure"] | None = Field(
        None,
        description="of one device, for MFU; measure: of a dense bfloat16 product, before the first step",
    )
    profile: ProfileConfig | None = Field(None, description="record a profiler's trace; null records none")
    memory_snapshot: MemorySnapshotConfig | None = Field(
        None, description="record a GPU's allocations; null records none"
    )
