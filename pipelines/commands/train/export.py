"""Write a checkpoint's weights as a folder that diffusers reads, or as one file by other tools' names.

--format diffusers, the default, writes a folder: a published model, adapters alone, a tokenizer, or for a model of ours
config.json and model.safetensors. --format native writes a file by the names of the original repository, which ComfyUI
reads: adapters, or a whole model. --format kohya writes adapters as musubi-tuner does. Without --format, --out
FILE.safetensors has the trained weights by our names, and the model is not loaded. All appear whole or not at all.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import Storage, StorageConfig, open_object
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.terminal.console import print_json, stderr, stdout
from reelweave.pipelines.terminal.files import output_target, say_replaced

if TYPE_CHECKING:
    from reelweave.train.config.parts import ModulesConfig
    from reelweave.train.config.run import TrainConfig
    from reelweave.train.sampling.trained.load import Trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave export`."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder for its newest"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="OUT",
        help="FILE.safetensors, local or on s3://, or a new local folder",
    )
    parser.add_argument(
        "--format",
        choices=("diffusers", "native", "kohya"),
        help="names of the weights: diffusers (default, a folder), native (FILE.safetensors; original repository,"
        " ComfyUI) or kohya (FILE.safetensors; adapters for musubi-tuner, ComfyUI)",
    )
    parser.add_argument(
        "--weights",
        choices=("ema", "model"),
        help="weights to export (default: ema if the run has it, else model)",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="type that weights are rounded to at last (default: as stored; merged: model.dtype of the run)",
    )
    parser.add_argument(
        "--merge",
        action="store_true",
        help="write the whole model of a LoRA run, with merged adapters; a folder, or a file with --format native",
    )
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Export one checkpoint and print what was written."""
    config = storage_config(options)
    is_file = options.out.endswith(".safetensors")
    if options.format == "diffusers" and is_file:
        raise UsageError("--format diffusers writes a folder: leave .safetensors out of --out")
    if options.format in ("native", "kohya"):
        if not is_file:
            raise UsageError(f"--format {options.format} writes one file: give --out FILE.safetensors")
        exported = _native(options, config)
    elif is_file:
        if options.merge:
            raise UsageError(
                "--merge makes a whole model: give --out a folder, or --format native for one .safetensors file"
            )
        exported = _file(options, config)
        if exported.pop("adapters"):
            _say(
                f"{options.out} holds adapters alone, by our names and without the scale alpha / rank; what diffusers"
                " and `reelweave sample --lora` read is a folder: leave .safetensors out of --out"
            )
    else:
        exported = _folder(options, config)
    if options.json:
        print_json({"out": options.out, **exported})
        return 0
    held = f", {exported['parameters']:,} parameters" if "parameters" in exported else ""
    stdout().print(
        f"{options.out}: {exported['weights']} weights of step {exported['step']}{held}",
        markup=False,
        soft_wrap=True,
    )
    return 0


def _say(sentence: str) -> None:
    stderr().print(sentence, markup=False, soft_wrap=True)


def _file(options: argparse.Namespace, config: StorageConfig) -> dict[str, Any]:
    from reelweave.train.checkpoint.export import export
    from reelweave.train.checkpoint.weights import weights_of

    saved = weights_of(options.checkpoint, options.weights, config)
    target, path = _output(options.out, config)
    exported = export(saved.storage, saved.folder, saved.state, saved.group, options.dtype, target, path)
    adapters = bool(saved.state.config.get("lora"))
    return {"step": saved.state.step, "weights": saved.group, "adapters": adapters, **exported._asdict()}


def _native(options: argparse.Namespace, config: StorageConfig) -> dict[str, Any]:
    """Write one file by native names."""
    from reelweave.train.checkpoint.weights import weights_of
    from reelweave.train.sampling.trained.load import run_config
    from reelweave.train.sampling.trained.native import check_native, export_native

    target, path = _output(options.out, config)
    saved = weights_of(options.checkpoint, options.weights, config)
    modules = run_config(saved).modules
    check_native(saved.uri, modules, options.format, options.merge)  # before a model is loaded
    with _loaded(options, config, modules) as trained:
        exported = export_native(trained, options.format, target, path, options.merge, options.dtype)
    _say_rounding(trained.config, options)
    written = exported._asdict()
    if note := written.pop("note"):
        _say(note)
    return {"step": trained.step, "weights": trained.weights, "format": options.format, **written}


def _output(out: str, config: StorageConfig) -> tuple[Storage, str]:
    """Return where a file is written; say if it replaces one."""
    target, path = open_object(out, config)
    if "://" not in (local := target.uri(path)):
        target, path = open_object(output_target(Path(local).absolute(), "--out"), config)
    say_replaced(out, target.stat(path) is not None)
    return target, path


def _folder(options: argparse.Namespace, config: StorageConfig) -> dict[str, Any]:
    from reelweave.train.checkpoint.new_folder import check_new
    from reelweave.train.checkpoint.weights import weights_of
    from reelweave.train.sampling.trained.export import export
    from reelweave.train.sampling.trained.load import run_config
    from reelweave.train.vae.export import export as export_vae

    if "://" in options.out:
        raise UsageError(
            f"{options.out} is no local folder: only a .safetensors file can be written elsewhere"
        )
    out = Path(options.out)
    check_new(out)  # before a model is loaded
    saved = weights_of(options.checkpoint, options.weights, config)
    if saved.state.config.get("kind") == "vae":
        if options.merge:
            raise UsageError("--merge is for adapters; a tokenizer has none")
        export_vae(saved, out, options.dtype)
        return {"step": saved.state.step, "weights": saved.group}
    with _loaded(options, config, run_config(saved).modules) as trained:
        export(trained, out, options.merge, options.dtype)
    _say_rounding(trained.config, options)
    return {"step": trained.step, "weights": trained.weights, "merged": options.merge}


@contextmanager
def _loaded(
    options: argparse.Namespace, config: StorageConfig, modules: "ModulesConfig"
) -> Iterator["Trained"]:
    """Load what is exported: of adapters of a published model not the weights under them, which may be large."""
    from reelweave.train.distributed.world import join
    from reelweave.train.sampling.trained.load import load_adapters_alone, load_trained

    with join("cpu") as world:
        if modules.lora is not None and modules.model.kind == "diffusers" and not options.merge:
            yield load_adapters_alone(options.checkpoint, options.weights, config)
        else:
            yield load_trained(options.checkpoint, world.device, options.weights, config, as_published=True)


def _say_rounding(config: "TrainConfig", options: argparse.Namespace) -> None:
    """Say where the scale of adapters is, or what merged weights are rounded to by default."""
    lora, narrow = config.lora, getattr(config.model, "dtype", "float32")
    if lora is None:
        return
    if not options.merge:
        _say(
            f"lora.alpha {lora.alpha:g} / lora.rank {lora.rank} is multiplied into the matrices, so the file says alpha"
            f" {lora.rank}: adapters act at the same scale, also where a reader ignores alpha"
        )
    elif narrow != "float32" and not options.dtype:
        _say(
            f"the merged weights are rounded to {narrow}, as the run held those under the adapters (model.dtype);"
            " --dtype float32 keeps the sums"
        )
