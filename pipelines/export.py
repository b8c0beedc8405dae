"""Make one safetensors file of a training checkpoint: the averaged weights, or the plain ones.

The file appears whole or not at all. It holds trained weights only; a frozen text encoder is no part of it.
"""

import argparse

from loader.storage import open_object
from pipelines.console import print_json, stdout
from pipelines.verify import add_storage_arguments, storage_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or the folder of a run for its newest"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="a path or an s3:// object")
    parser.add_argument("--weights", choices=("ema", "model"), help="ema where there is one, unless given")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="as stored, unless given")
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the file and says what it holds."""
    from train.checkpoint.export import export
    from train.checkpoint.folder import located
    from train.checkpoint.state import read_state

    config = storage_config(options)
    storage, folder = located(options.checkpoint, config)
    state = read_state(storage, folder)
    group = options.weights or ("ema" if "ema" in state.groups else "model")
    target, path = open_object(options.out, config)
    made = export(storage, folder, state, group, options.dtype, target, path)
    if options.json:
        print_json({"out": options.out, "step": state.step, "weights": group, **made._asdict()})
    else:
        stdout().print(
            f"{options.out}: {group} weights of step {state.step}, {made.tensors} tensors,"
            f" {made.parameters:,} parameters, {made.bytes / 1e6:.1f} MB",
            markup=False,
            soft_wrap=True,
        )
    return 0
