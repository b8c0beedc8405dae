"""Layout of sampling: which model runner, guided prediction and decoder the ranks of a video use."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from reelweave.loader.errors import UsageError
from reelweave.train.distributed.world import World
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.parallel.context.token_shard import cuttable
from reelweave.train.parallel.rank_grid import CONTEXT
from reelweave.train.sampling.config import SampleLayoutConfig
from reelweave.train.sampling.context.runner import ContextParallelModel
from reelweave.train.sampling.decode.decoder import GroupDecoder, WholeDecoder
from reelweave.train.sampling.decode.fitting import FittingDecoder
from reelweave.train.sampling.decode.tiled import TiledDecoder
from reelweave.train.sampling.experts.by_time import ExpertRunner
from reelweave.train.sampling.latent_parallel.predictor import LatentParallel
from reelweave.train.sampling.latent_parallel.rules import Rules
from reelweave.train.sampling.prediction.guidance import Guided
from reelweave.train.sampling.prediction.predictor import ModelRunner, Predictor, WholeModel
from reelweave.train.sampling.ranks.mesh import SamplingRanks
from reelweave.train.sampling.scalefusion.measure import MeasuredScaleFusion
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import Slicing

Divide = Callable[[Guided], Predictor]


@dataclass(frozen=True, eq=False)
class ExpertLayout:
    """Layout of the second of two experts, which predicts where there is little noise.

    Attributes:
        experts: both models.
        runner: the second model on the ranks of one pass.
        divided: layout that divides the latents; None: they stay whole.
    """

    experts: Experts
    runner: ModelRunner
    divided: Divide | None = None


@dataclass(frozen=True, eq=False)
class VideoLayout:
    """Parts of sampling on the ranks that make a video together.

    Attributes:
        runner: model on the ranks of one pass; of two experts, the one for much noise.
        decoder: decoder on all ranks of the video.
        cfg: ranks that share the passes of guidance; None: each rank runs all of them.
        video: ranks that make the video together; None: this one alone.
        divided: layout that divides the latents, around the guided prediction; None: they stay whole.
        sequence: ranks that hold parts of the same tokens, which decide together; None: this one alone.
        low_noise: the second expert; None: one model makes all of the video.
    """

    runner: ModelRunner
    decoder: GroupDecoder
    cfg: World | None = None
    video: World | None = None
    divided: Divide | None = None
    sequence: World | None = None
    low_noise: ExpertLayout | None = None

    @classmethod
    def alone(cls, bundle: Bundle, experts: Experts | None = None) -> "VideoLayout":
        """Return the layout of one process."""
        decoder = WholeDecoder(bundle.tokenizer)
        if experts is None:
            return cls(WholeModel(bundle.dit), decoder)
        high, low = (
            ExpertRunner(WholeModel(dit), dit, experts) for dit in (experts.high_noise, experts.low_noise)
        )
        return cls(high, decoder, low_noise=ExpertLayout(experts, low))


def build_layout(
    bundle: Bundle,
    ranks: SamplingRanks,
    config: SampleLayoutConfig,
    decode_bytes: int | None = None,
    experts: Experts | None = None,
) -> VideoLayout:
    """Build the parts of sampling for a grid of ranks; a collective of all of them.

    Args:
        bundle: model, on the compute device of every rank.
        ranks: the grid.
        config: its degrees, and options of its parts.
        decode_bytes: memory that a decode may take; None: what is free on a GPU.
        experts: two models that make the video, of which the bundle has one; None: the bundle's alone.

    Raises:
        UsageError: the model does not fit the degrees.
    """
    low_noise = None
    if experts is not None:
        low_noise = ExpertLayout(experts, *_parts(experts.low_noise, ranks, config, experts))
    runner, divided = _parts(experts.high_noise if experts else bundle.dit, ranks, config, experts)
    return VideoLayout(
        runner,
        FittingDecoder(TiledDecoder(bundle.tokenizer, ranks.video, ranks=config.vae_ranks), decode_bytes),
        ranks.along("cfg") if ranks.mesh.cfg > 1 else None,
        ranks.video,
        divided,
        ranks.along(*CONTEXT),
        low_noise,
    )


def _parts(
    dit: Denoiser, ranks: SamplingRanks, config: SampleLayoutConfig, experts: Experts | None
) -> tuple[ModelRunner, Divide | None]:
    """Return a model's runner, and the division of latents around its guided prediction."""

    def place_runner(runner: ModelRunner) -> ModelRunner:
        return runner if experts is None else ExpertRunner(runner, dit, experts)

    divided = _choose_division(dit, ranks, config, place_runner) if ranks.mesh.lp > 1 else None
    return place_runner(_runner(dit, ranks, config)), divided


def _choose_division(
    dit: Denoiser,
    ranks: SamplingRanks,
    config: SampleLayoutConfig,
    distribute: Callable[[ModelRunner], ModelRunner],
) -> Divide:
    """Return the division of latents over `lp` groups of ranks; a ring of all of them runs undivided steps."""
    rules, groups, video = Rules.of(config.latent_parallel), ranks.along("lp"), ranks.video
    undivided = None
    if rules.exact_steps:
        undivided = distribute(ContextParallelModel(dit, ranks.context_with("lp")))
    return lambda guided: LatentParallel(
        guided,
        rules,
        dit.patch,
        groups,
        video,
        None if undivided is None else replace(guided, run=undivided),
    )


def together(world_size: int, dit: Denoiser, passes: int, tokens: int) -> SampleLayoutConfig:
    """Return degrees that put all ranks to one video.

    The passes of guidance come first, since they exchange least; then heads (Ulysses) as far as they divide; then
    a ring of the rest. Ranks of which no degree makes use make other videos.

    Args:
        world_size: number of ranks.
        dit: the model.
        passes: number of passes of guidance.
        tokens: number of tokens of the smallest video.
    """
    cfg = math.gcd(world_size, passes)
    remaining = world_size // cfg
    try:
        heads = cuttable(dit).full_heads
    except UsageError:
        return SampleLayoutConfig(cfg=cfg)
    used = max(degree for degree in range(1, remaining + 1) if remaining % degree == 0 and degree <= tokens)
    ulysses = math.gcd(used, heads)
    return SampleLayoutConfig(cfg=cfg, ulysses=ulysses, ring=used // ulysses)


def _runner(dit: Denoiser, ranks: SamplingRanks, config: SampleLayoutConfig) -> ModelRunner:
    """Return the model on the ranks of `ranks.context`."""
    sharing = ranks.mesh.degree(CONTEXT)
    if config.scalefusion is not None:
        if sharing == 1:
            raise UsageError(
                "layout scalefusion runs an ST-DiT over ranks that share a video: raise ring or ulysses above 1"
            )
        group = ranks.context.group
        if config.scalefusion == "measured":
            return MeasuredScaleFusion(dit, group, ranks.mesh.ulysses)
        return ScaleFusion(dit, group, Slicing(*config.scalefusion))
    return ContextParallelModel(dit, ranks.context) if sharing > 1 else WholeModel(dit)
