"""Where a run's scalars go beside its own records: TensorBoard, Weights & Biases."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from loader.errors import RunError, UsageError, first_line
from train.config.log import WandbConfig
from train.config.run import TrainConfig
from train.config.vae import VaeTrainConfig

_WANDB_ID = "wandb_id"


class Scalars(Protocol):
    """Shows numbers over the steps of a run."""

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Numbers of a step, by name; a slash makes groups of them."""

    def close(self, failed: bool) -> None:
        """The last call."""


def open_scalars(
    out: Path, config: TrainConfig | VaeTrainConfig, start_step: int, writes: bool
) -> list[Scalars]:
    """Where the scalars of a run go on after ``start_step``; nowhere on ranks that do not write.

    Args:
        out: folder of the run.
        config: the run, which is told along.
        start_step: the steps already done; later ones, left by a run that was killed, count no more.
        writes: true on the one rank that records.

    Raises:
        UsageError: Weights & Biases is wanted and not installed; on every rank.
        RunError: it cannot be reached, or does not know who you are.
    """
    wandb = config.log.wandb
    if wandb and find_spec("wandb") is None:
        raise UsageError("log.wandb needs wandb: pip install reelweave[wandb], or set it to null")
    opened: list[Scalars] = []
    if writes and config.log.tensorboard:
        opened.append(TensorBoard(out, start_step))
    if writes and wandb:
        opened.append(Wandb(out, wandb, config))
    return opened


class TensorBoard:
    """Events in ``tensorboard`` of the run's folder."""

    def __init__(self, out: Path, start_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # takes seconds, and not every run wants it

        self._events = SummaryWriter(str(out / "tensorboard"), purge_step=start_step + 1)

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)

    def close(self, failed: bool) -> None:  # noqa: ARG002 - as `Scalars` has it
        self._events.close()


class Wandb:
    """A run of Weights & Biases, the same one when training goes on.

    It takes points of one run in any order, so a step that is made again after a kill is shown again. It gets scalars
    and the configuration, which holds no secrets, and neither the command line nor the source nor the console.
    """

    def __init__(self, out: Path, config: WandbConfig, run: TrainConfig | VaeTrainConfig) -> None:
        import wandb  # takes seconds, and not every run wants it

        known = out / _WANDB_ID
        if not known.exists():
            aside = out / f".{_WANDB_ID}"
            aside.write_text(uuid4().hex[:12], encoding="utf-8")
            aside.replace(known)
        try:
            self._run = wandb.init(
                project=config.project,
                name=config.name,
                entity=config.entity,
                mode=config.mode,
                id=known.read_text(encoding="utf-8").strip(),
                resume="allow",
                dir=str(out),
                config=run.model_dump(mode="json"),
                settings=wandb.Settings(
                    console="off",
                    disable_code=True,
                    disable_git=True,
                    disable_job_creation=True,
                    x_disable_meta=True,
                    silent=True,
                ),
            )
        except wandb.errors.Error as error:
            raise RunError(
                f"wandb did not begin a run ({first_line(error)}): wandb login, or set log.wandb.mode=offline"
            ) from error
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        self._run.log({**scalars, "step": step})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
