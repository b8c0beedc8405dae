"""The scripts of examples/unchanged with our data part, on ranks started as torchrun does it."""

import json
import os
import runpy
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ports import reserved_port

IMPORTED_FIRST = ("accelerate", "torchdata.stateful_dataloader")


def run(folder: str, calls: dict[str, list[str]]) -> None:
    """Run scripts of a folder, each with its options; what each trains goes to NAME.RANKS.RANK.json."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_WORLD_SIZE=os.environ["WORLD_SIZE"])
    os.environ.update(TORCHELASTIC_RUN_ID="scripts", GROUP_RANK="0", OMP_NUM_THREADS="1")
    # Accelerate, Lightning and the scripts begin and end process groups of their own.
    held, rank = ExitStack(), int(os.environ["RANK"])
    for name, options in calls.items():
        print(name, file=sys.stderr, flush=True)
        trained = record(name, options)
        path = Path(f"{name}.{os.environ['WORLD_SIZE']}.{rank}.json")
        path.write_text(json.dumps(trained))
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        following = [held.enter_context(reserved_port()) if rank == 0 else None]
        dist.broadcast_object_list(following)
        dist.barrier()
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(following[0])
        forget_accelerate()


def record(name: str, options: list[str]) -> dict[str, Any]:
    """Run a script as its command line does; return captions of each forward, none of a filler, and losses."""
    import clips

    import reelweave

    prompts, losses = list[list[str]](), list[float]()
    forward, opened = clips.Model.forward, reelweave.open_batches

    def recorded(self: Any, videos: torch.Tensor, captions: tuple[str, ...]) -> torch.Tensor:
        losses_B = forward(self, videos, captions)
        prompts.append([caption for caption in captions if caption != FILLER])
        losses.extend(losses_B.tolist())
        return losses_B

    def marked(*arguments: Any, convert: Any, **more: Any) -> Any:
        def mark(batch: Any) -> Any:
            return convert(batch if batch.weight else replace(batch, captions=(FILLER,) * len(batch.keys)))

        return opened(*arguments, convert=mark, **more)

    clips.Model.forward, reelweave.open_batches = recorded, marked
    sys.argv = [f"{name}.py", *options]
    try:
        found = runpy.run_path(f"{name}.py", run_name="script")
        found["main"]()
    finally:
        clips.Model.forward, reelweave.open_batches = forward, opened
    return {"prompts": prompts, "losses": losses}


def forget_accelerate() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


FILLER = "a filler"
