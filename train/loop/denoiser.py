"""A denoiser in training: its layout on the ranks, its average, its cascades and its evaluation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.train.cascade.training.start import run_by_cascades
from reelweave.train.checkpoint.pieces import Tensors
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.evaluation import HeldOutEvaluation, never_due
from reelweave.train.loop.logs.breakdown import LossRecord, LossRows
from reelweave.train.loop.logs.log import RunLog
from reelweave.train.loop.validation import Validation, Validator
from reelweave.train.measure.timings import StepClock
from reelweave.train.models.encoders.cut_captions import CutCaptions
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.parallel.layout import lay_out
from reelweave.train.parallel.mesh import DATA, Ranks
from reelweave.train.sampling.trained.published import compare_with_published
from reelweave.train.step.batches import BatchStream, check_shapes
from reelweave.train.step.ema import Ema
from reelweave.train.step.learning_rate import learning_rate
from reelweave.train.step.step_losses import StepLosses


class DenoiserTask:
    """`reelweave.train.loop.task.TrainingTask` of a denoiser with one of the objectives.

    A sample's loss is the weighted mean squared error of its prediction.

    Args:
        config: The run.
        ranks: Its processes.
        stream: This rank's microbatches, which cascades look ahead in.
        out: Folder of the run.
        held_out: Clips to evaluate on.
        stored: Encoders that need not be loaded.
        validation: Videos to sample.

    Raises:
        UsageError: The layout does not fit the model or the ranks, or a published part cannot be had. Or
            shapes of the stream or videos of validation do not fit the model.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        stream: BatchStream,
        out: Path,
        held_out: HeldOutEvaluation | None,
        stored: StoredEncoders | None,
        validation: Validation | None = None,
    ) -> None:
        self._config, self._stream, self._out, self._held_out = config, stream, out, held_out
        self._layout = layout = lay_out(config.step, ranks, stored)
        check_shapes(stream, layout.bundle)
        self._cascades = (
            run_by_cascades(layout, config.cascades) if config.parallel.schedule == "cascade" else None
        )
        self.weights, self.data = layout.weights, ranks.along(*DATA)
        self._ema = Ema(config.ema, layout.weights)
        self._rows = LossRows()
        self._cut, self._cut_sentence = CutCaptions(layout.bundle.text), ""
        self._validator = Validator(validation, config, layout, self._ema, out) if validation else None

    @property
    def description(self) -> str:
        return f"{self._layout.count:,} weights"

    def state(self) -> Mapping[str, Tensors]:
        layout, averages = self._layout, self._ema.tensors
        groups = {"model": layout.place(self.weights), "optimizer": layout.optimizer_state()}
        return groups | ({"ema": layout.place(averages)} if averages else {})

    def start(self, done: int, log: RunLog) -> None:
        """Give all ranks the same weights; evaluate and sample them as a run begins; plan the first steps of cascades.

        Raises:
            UsageError: ``lora.targets`` of a new run has an entry that names no layer, or ``objective.prediction``
                is another than the published model's; one that resumes goes on.
        """
        if unknown := self._layout.bundle.dit.unknown_targets:
            if not done:
                raise UsageError(f"{unknown}; correct it or leave it out")
            log.say(unknown)
        for line in compare_with_published(self._config.modules, self._layout.bundle.dit, new=not done):
            log.say(line)
        self._say_never_due(log)
        self._layout.share()
        if not done:
            self._evaluate(0, log)
        if self._cascades is not None:
            self._cascades.prefetch_from(self._stream)

    def _say_never_due(self, log: RunLog) -> None:
        """Say what is configured at intervals, and takes place in no step."""
        recalibrate, total_steps = self._config.recalibrate, self._config.schedule.total_steps
        intervals = {"held_out": self._held_out, "validation": self._validator, "recalibrate": recalibrate}
        for section, interval in intervals.items():
            first = getattr(interval, "before_first_step", False)
            if interval and (line := never_due(section, interval.every_steps, total_steps, first)):
                log.say(line)

    def begin(self, step: int) -> float:
        lr = learning_rate(step - 1, self._config.optimizer, self._config.schedule)
        for group in self._layout.optimizer.param_groups:
            group["lr"] = lr
        self._layout.zero_gradients()
        return lr

    def forward_backward(
        self,
        batches: Iterable[Microbatch | Pack],
        step: int,  # noqa: ARG002 - as `TrainingTask` has it
        losses: StepLosses,
        clock: StepClock,
    ) -> Iterator[Microbatch | Pack]:
        """Run the microbatches as the layout or the plan of cascades has them; note the loss of each sample."""
        for batch, sample_losses in self._layout.passes(batches, losses.add, clock):
            self._rows.add(batch, sample_losses)
            if self._layout.ranks.world.rank == 0:
                self._cut_sentence = self._cut.add(batch.captions) or self._cut_sentence
            yield batch

    def updated_weights(self) -> Iterable[nn.Parameter]:
        """Return the weights that a step updates."""
        return self.weights.values()

    def sum_gradients(self) -> None:
        self._layout.sum_gradients()

    def norms(self) -> tuple[torch.Tensor, ...]:
        return (self._layout.norm(),)

    def clip(self, norms: Sequence[torch.Tensor]) -> None:
        self._layout.clip(self._config.optimizer.grad_clip, *norms)

    def update(self, step: int) -> None:
        self._layout.update()
        self._ema.update_(self.weights.values(), step)

    def terms(self) -> None:
        """Return None: the loss has one term."""

    def after_step(self, step: int, log: RunLog) -> None:
        """Draw the timeline of cascades; break the losses down; evaluate held-out clips; sample validation videos."""
        if self._cut_sentence:
            log.say(f"step {step}: {self._cut_sentence}")
            self._cut_sentence = ""
        if self._cascades is not None and (line := self._cascades.write_timeline(step, self._out)):
            log.say(line)
        if step % self._config.log.every_steps == 0:
            log.write(LossRecord(step, "train", self._rows.take(self.data)))
        self._evaluate(step, log)

    def _evaluate(self, step: int, log: RunLog) -> None:
        """Evaluate held-out clips and sample validation videos, if they are due; step 0 is before the first one."""
        if self._held_out and _is_due(self._held_out, step):
            layout = self._layout
            breakdown = self._held_out.losses(
                layout.bundle, self._config.losses, self.data, layout.run_dummy_steps, layout.errors
            )
            log.write(LossRecord(step, "held_out", breakdown))
        if self._validator and _is_due(self._validator, step):
            self._validator.run(step, log)


def _is_due(evaluation: HeldOutEvaluation | Validator, step: int) -> bool:
    return step % evaluation.every_steps == 0 if step else evaluation.before_first_step
