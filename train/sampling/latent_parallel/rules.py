"""Rules of a mode of Latent Parallelism, resolved from the configuration."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from reelweave.train.sampling.config import LatentParallelConfig

Axes = Literal["strict", "phases", "eligible", "fixed"]
Cores = Literal["ceil", "even"]
Ramp = Literal["linear", "closed_cosine", "cosine"]


class Aids(NamedTuple):
    """Final strength of each aid of UNITE; 0: off.

    Attributes:
        guidance_decay: share by which the guidance falls, from 60 % of the steps on.
        delta_smoothing: share of the average over 3 x 3 places in differences of passes, from 55 % on.
        rescale: share of the prediction with the spread of the conditioned pass, from 20 % on.
        final_smoothing: share of the average over 3 x 3 places in the blended prediction, from 85 % on.
    """

    guidance_decay: float = 0.0
    delta_smoothing: float = 0.0
    rescale: float = 0.0
    final_smoothing: float = 0.0


NO_AIDS = Aids()
UNITE_AIDS = Aids(0.10, 0.10, 0.35, 0.02)


@dataclass(frozen=True)
class Rules:
    """Choices that make up a mode.

    Attributes:
        axes: order of the divided axes (`axes.axis_of`).
        cores: ceil: L = ceil(N / K) patches each, the rest for the last; even: parts differ by one patch at most.
        overlap: overlap of neighbours in units of L, at the first and the last step; linear between.
        ramp: weights on overlaps (`weights.ramp`).
        exact_steps: number of first steps without division.
        aids: strengths of the aids.
        per_part: statistics and padding of the aids see each part by itself, as in UNITE; false: all of the video.
        reduce: sum: one all-reduce of weighted predictions; gather: parts are gathered, and blended in order.
        global_positions: parts keep their positions in the whole video.
    """

    axes: Axes
    cores: Cores
    overlap: tuple[float, float]
    ramp: Ramp
    exact_steps: int = 0
    aids: Aids = NO_AIDS
    per_part: bool = False
    reduce: Literal["sum", "gather"] = "gather"
    global_positions: bool = True

    @classmethod
    def of(cls, config: LatentParallelConfig) -> "Rules":
        """Return the rules of a configuration; what it leaves open is the mode's."""
        # Overlaps: one of two numbers keeps the mode's proportion.
        mode = MODES[config.mode]
        first, last = mode.overlap
        if config.overlap is not None:
            first, last = config.overlap, config.overlap * last / first
        if config.last_overlap is not None:
            last = config.last_overlap
        # Aids: each on or off, or as the mode has it.
        switches = {name: getattr(config, name) for name in Aids._fields}
        chosen = {
            name: getattr(mode.aids if on is None else UNITE_AIDS if on else NO_AIDS, name)
            for name, on in switches.items()
        }
        return cls(
            axes=mode.axes if config.rotate else "fixed",
            cores=mode.cores,
            overlap=(first, last),
            ramp=mode.ramp,
            exact_steps=mode.exact_steps if config.exact_steps is None else config.exact_steps,
            aids=Aids(**chosen),
            per_part=mode.per_part,
            reduce=mode.reduce,
            global_positions=config.positions == "global",
        )

    def overlap_at(self, progress: float) -> float:
        """Return the overlap at a share of the steps, from 0 to 1."""
        first, last = self.overlap
        return first + (last - first) * progress


MODES = {
    "paper": Rules("strict", "ceil", (0.5, 0.5), "linear"),
    "unite": Rules("phases", "ceil", (0.4, 0.2), "closed_cosine", 1, UNITE_AIDS, per_part=True, reduce="sum"),
    "balanced": Rules("eligible", "even", (0.4, 0.4), "cosine"),
}
