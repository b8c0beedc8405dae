"""Keys of the steps that a report plans."""

from pydantic import Field, PositiveInt

from reelweave.loader.plan.policy import Regime
from reelweave.loader.settings import Settings

_STEPS, _FEWEST_STEPS, _MICROBATCHES_OF_ONE_STEP = 100, 16, 25_600


class StepsConfig(Settings):
    """A cluster, and how its ranks take their steps: what `stream` of a training configuration says, and the ranks."""

    world_size: PositiveInt = Field(le=65_536, description="number of data-parallel ranks")
    microbatches: PositiveInt = Field(
        default=4, le=1024, description="mean microbatches per rank and optimizer step"
    )
    regime: Regime = Field(
        default="step", description="synchronization of ranks: step, slot or pack, as in `stream.regime`"
    )
    lookahead: PositiveInt = Field(
        default=4, le=1024, description="`regime: slot`: window in steps within which microbatches may move"
    )
    steps: PositiveInt | None = Field(
        default=None,
        le=100_000,
        description="number of steps that are planned; null: 100, fewer above 256 ranks",
    )
    seed: int = Field(default=0, ge=0, lt=2**64, description="seed of the sample order, as `stream.seed`")

    @property
    def count(self) -> int:
        """Number of steps that are planned."""
        few = max(_FEWEST_STEPS, _MICROBATCHES_OF_ONE_STEP // self.world_size)
        return min(_STEPS, few) if self.steps is None else self.steps
