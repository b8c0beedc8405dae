"""Ranks and accumulation as the objects of other frameworks state them, and a loader's state in their checkpoints."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from reelweave.loader.base.named_file import read_named
from reelweave.loader.base.strict_json import parse
from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.position import MAX_BYTES
from reelweave.loader.stream.loaders.batch_loader import BatchLoader

STATE_FILE = "reelweave_loader.json"
"""File of the loader's state in a checkpoint of transformers' Trainer."""

_TRAINER_STATE = "trainer_state.json"
_MAX_TRAINER_STATE_BYTES = 64 << 20


class TrainingLoop(NamedTuple):
    """Facts of a loop that counts batches.

    Attributes:
        rank: data-parallel rank.
        world_size: number of data-parallel ranks.
        microbatches: batches of a rank in an optimizer step; None where the loop does not say it.
        device: device of the batches; None where the loop moves them itself.
    """

    rank: int
    world_size: int
    microbatches: int | None
    device: Any


def read_loop(loop: Any) -> TrainingLoop:
    """Return the facts of an Accelerator, of a Trainer of Lightning or transformers, or of Megatron's parallel state.

    Raises:
        UsageError: it is none of these.
    """
    if hasattr(loop, "register_for_checkpointing"):
        facts = (loop.process_index, loop.num_processes, loop.gradient_accumulation_steps, loop.device)
    elif hasattr(loop, "accumulate_grad_batches"):
        facts = (loop.global_rank, loop.world_size, loop.accumulate_grad_batches, None)
    elif _is_transformers(loop):
        args = loop.args
        facts = (args.process_index, args.world_size, args.gradient_accumulation_steps, args.device)
    elif hasattr(loop, "get_data_parallel_rank"):
        facts = (loop.get_data_parallel_rank(), loop.get_data_parallel_world_size(), None, None)
    else:
        raise UsageError(
            f"loop is a {type(loop).__name__}; give accelerate's Accelerator, the Trainer of Lightning or transformers,"
            " or Megatron's parallel_state, or leave it out and give rank, world_size and microbatches"
        )
    return TrainingLoop(*facts)


def keep_state(loop: Any, loader: BatchLoader) -> None:
    """Let the checkpoints of a loop hold the state of its loader; Lightning asks each loader for it anyway.

    Raises:
        UsageError: transformers' Trainer has a dataset already.
    """
    if hasattr(loop, "register_for_checkpointing"):
        loop.register_for_checkpointing(loader)
    elif _is_transformers(loop):
        _feed_trainer(loop, loader)


def _is_transformers(loop: Any) -> bool:
    return hasattr(loop, "get_train_dataloader") and hasattr(loop, "add_callback")


def _feed_trainer(trainer: Any, loader: BatchLoader) -> None:
    """Let transformers' Trainer read a loader, save its state in every checkpoint, and load it when it resumes."""
    from transformers import TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint

    if trainer.train_dataset is not None:
        raise UsageError("the Trainer has a train_dataset beside this loader: make it without one")

    class KeepState(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.is_world_process_zero:
                path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE_FILE
                with whole_file(path) as aside:
                    aside.write_text(json.dumps(loader.state_dict()))

    train = trainer.train

    def resume(resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(trainer.args.output_dir)
        if folder:
            # Before the Trainer counts the steps of the epoch: on other ranks they are others.
            _load(loader, Path(str(folder)))
            _check_epoch(trainer, loader, Path(str(folder)))
        return train(resume_from_checkpoint, *args, **options)

    trainer.args.ignore_data_skip = (
        True  # the state says what is done; skipping would leave out as much again
    )
    trainer.get_train_dataloader = lambda: loader
    trainer.train = resume
    trainer.add_callback(KeepState)


def _load(loader: BatchLoader, folder: Path) -> None:
    path = folder / STATE_FILE
    if not path.exists():
        raise UsageError(
            f"{folder} holds no {STATE_FILE}, so it does not say which samples are done: resume from a checkpoint of"
            " a Trainer that had this loader"
        )
    try:
        state = parse(read_named(path, MAX_BYTES))
    except ValueError as error:
        raise UsageError(f"{path} is no state of a loader: {error}") from error
    loader.load_state_dict(state)


def _check_epoch(trainer: Any, loader: BatchLoader, folder: Path) -> None:
    """Refuse a resume in which the Trainer would count the epoch wrongly: it divides its steps by those of an epoch."""
    steps_of_epoch = len(loader) // trainer.args.gradient_accumulation_steps
    epoch = loader.stream.cursor.position.epoch
    if trainer.args.max_steps > 0 or steps_of_epoch == 0:
        return
    path = folder / _TRAINER_STATE
    try:
        step = int(parse(read_named(path, _MAX_TRAINER_STATE_BYTES))["global_step"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} does not say global_step: {error!r}; resume from another checkpoint"
        ) from error
    counted = step // steps_of_epoch
    if counted != epoch and counted >= trainer.args.num_train_epochs > epoch:
        raise UsageError(
            f"the Trainer takes step {step} for one of epoch {counted}, since an epoch has"
            f" {steps_of_epoch} steps on {loader.stream.world_size} ranks, and would train no more; it is in epoch"
            f" {epoch}: set max_steps in the TrainingArguments"
        )
