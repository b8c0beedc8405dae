"""Configuration of logs, profiles and memory snapshots; importing it loads no torch."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from reelweave.loader.settings import Settings


class StepWindow(Settings):
    """A range of optimizer steps on selected ranks."""

    from_step: int = Field(10, ge=1, description="first recorded optimizer step, counted from 1")
    steps: int = Field(3, ge=1, le=1000, description="number of recorded steps")
    ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), min_length=1, description="ranks that record"
    )

    @property
    def last_step(self) -> int:
        """Last recorded optimizer step."""
        return self.from_step + self.steps - 1


class ProfileConfig(StepWindow):
    """Traces by torch.profiler, in ``profiles`` of the run's folder."""

    from_step: int = Field(
        10,
        ge=2,
        description="first recorded optimizer step; the step before it warms up the profiler",
    )
    shapes: bool = Field(False, description="record the shapes of operators' inputs")
    stacks: bool = Field(False, description="record the source line of each operator call; slow")
    memory: bool = Field(False, description="record allocations and frees of operators")


class MemorySnapshotConfig(StepWindow):
    """Allocations of a GPU and their call sites, in ``memory`` of the run's folder; needs a GPU."""

    max_events: int = Field(100_000, ge=1, description="number of newest allocations and frees to keep")


class WandbConfig(Settings):
    """Weights & Biases; needs the extra ``wandb``. The login comes from wandb's own settings."""

    project: str = Field(min_length=1, description="project that the run belongs to")
    name: str | None = Field(None, description="name of the run; null: wandb chooses one")
    entity: str | None = Field(None, description="user or team; null: your default entity")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: write to the run's folder, for a later wandb sync"
    )


class MlflowConfig(Settings):
    """MLflow; needs the extra ``mlflow``. Server and login come from its own settings (``MLFLOW_TRACKING_URI``)."""

    experiment: str = Field(
        min_length=1, description="experiment that the run belongs to, created if missing"
    )
    name: str | None = Field(None, description="name of the run; null: MLflow chooses one")


class LogConfig(Settings):
    """Logging; metrics.jsonl gets a line at every step."""

    every_steps: int = Field(
        10, ge=1, description="steps between lines on the console, in losses.jsonl and in ranks.jsonl"
    )
    tensorboard: bool = Field(True, description="write TensorBoard events beside metrics.jsonl")
    wandb: WandbConfig | None = Field(None, description="log to Weights & Biases, too; null: do not")
    mlflow: MlflowConfig | None = Field(None, description="log to MLflow, too; null: do not")
    peak_tflops: PositiveFloat | Literal["measure"] | None = Field(
        None,
        description="peak TFLOP/s of one device, for MFU; measure: time a dense bfloat16 product before the first"
        " step",
    )
    profile: ProfileConfig | None = Field(None, description="record a profiler trace; null: none")
    memory_snapshot: MemorySnapshotConfig | None = Field(
        None, description="record allocations of a GPU; null: none"
    )
