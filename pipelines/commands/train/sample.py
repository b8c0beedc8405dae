"""Generate videos from captions with a trained checkpoint, on one GPU or, under torchrun, on all together.

--prompt makes one video, --prompts one for each line of a file. The same command, run again, completes
a folder.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reelweave.loader.errors import UsageError
from reelweave.loader.text import pluralize
from reelweave.pipelines.commands.train import sample_options
from reelweave.pipelines.configuration.storage_options import storage_config
from reelweave.pipelines.sampling.layout_option import TRAINING, InTraining, read_layout
from reelweave.pipelines.terminal.console import print_json, progress_bars, stderr, stdout
from reelweave.train.sampling.config import SampleConfig, SampleLayoutConfig

if TYPE_CHECKING:
    from reelweave.pipelines.sampling.advised import Advised
    from reelweave.pipelines.sampling.run import Made, SamplingRun
    from reelweave.train.distributed.world import World
    from reelweave.train.sampling.trained.load import Trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave sample`."""
    sample_options.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Generate the videos and write them."""
    config, requests, out, note = sample_options.read_options(options)
    from reelweave.train.distributed.sent_bytes import count_sent_bytes
    from reelweave.train.distributed.world import join
    from reelweave.train.models.attention.backend import attention_backend

    with join(options.device) as world, count_sent_bytes() as sent, ExitStack() as stack:
        if note and world.rank == 0:
            stderr().print(note, markup=False, soft_wrap=True)
        # Model and the layout on its ranks.
        trained = _model(options, world)
        of = trained.config
        backend = attention_backend(of.parallel.attention, of.model, of.dtype, world.device, required=False)
        stack.enter_context(backend)
        from reelweave.pipelines.sampling.cut_captions import say_cut_captions
        from reelweave.pipelines.sampling.frame_rate import fps_of_files
        from reelweave.pipelines.sampling.run import SamplingRun
        from reelweave.pipelines.sampling.sources import sources_sha256

        configs = [request.config(config, index) for index, request in enumerate(requests)]
        advised = _degrees(options, world.size, trained, configs)
        if not advised.found and world.rank == 0:
            stderr().print(
                f"{advised.reason}; {_describe_degrees(advised.degrees)}", markup=False, soft_wrap=True
            )
        # A folder is compared with digests of the model's files, so that with another model its videos are not kept.
        fps = fps_of_files(options.fps, trained.config.model, trained.fps, says=world.rank == 0)
        decode_bytes = None if options.decode_gib is None else int(options.decode_gib * 2**30)
        named = (options.checkpoint, options.checkpoint_2), (options.lora, options.lora_2)
        many = not sample_options.is_video(out)
        files = sources_sha256(world, trained, *named, storage_config(options)) if many else None
        job = SamplingRun(world, trained, requests, config, fps, advised.degrees, decode_bytes, files)
        if world.rank == 0:
            say_cut_captions(trained.bundle.text, configs, requests)
        outputs = (_many if many else _one)(job, world, out)
        sent_bytes = [int(text) for text in world.gather_text(str(sent.total))]
        if world.rank > 0:
            return 0
    # The first rank tells what was made and how.
    result: dict[str, Any] = {
        "out": str(out),
        "checkpoint": trained.checkpoint,
        "step": trained.step,
        "weights": trained.weights,
        "fps": fps,
        "layout": job.layout,
        "layout_reason": advised.reason,
        "seconds": outputs.seconds,
        "sent_bytes": sent_bytes,
        "cache_quality": outputs.cache and asdict(outputs.cache),
        "decode": [
            {"latents": size, "tiles": plan.tiles, "peak_gib": round(plan.peak_bytes / 2**30, 5)}
            for size, plan in job.decode_plans.items()
        ],
    }
    if not many:
        result |= {"prompt": options.prompt, **config.model_dump(mode="json")}
    else:
        result |= {
            "videos": len(requests),
            "made": len(outputs.records),
            "manifest": str(out / "manifest.jsonl"),
        }
    if options.json:
        print_json(result)
    else:
        _print(result, config)
    return 0


def _model(options: argparse.Namespace, world: "World") -> "Trained":
    from reelweave.train.sampling.experts.loading import with_experts
    from reelweave.train.sampling.in_training.loading import with_experts_on

    if None not in (options.checkpoint_2, options.lora_2):
        raise UsageError("--checkpoint-2 and --lora-2 are both of the other expert: give one of them")
    trained, storage = _first_model(options, world), storage_config(options)
    if trained.ranks is not None:
        return with_experts_on(trained, options.lora_2, options.checkpoint_2, options.weights, storage)
    return with_experts(
        trained, world.device, options.lora_2, options.checkpoint_2, options.weights, storage, world
    )


def _first_model(options: argparse.Namespace, world: "World") -> "Trained":
    from reelweave.train.sampling.in_training.loading import load_published_on, load_trained_on
    from reelweave.train.sampling.trained.load import load_published, load_trained

    layout = read_layout(options.layout)
    if options.config is None:
        if options.lora is not None:
            raise UsageError("--lora belongs to --config; the checkpoint of a LoRA run has its adapters")
        storage = storage_config(options)
        if isinstance(layout, InTraining):
            return load_trained_on(world, options.checkpoint, layout.parallel, options.weights, storage)
        return load_trained(options.checkpoint, world.device, options.weights, storage, world)
    if options.checkpoint_2 is not None:
        raise UsageError("--checkpoint-2 belongs to --checkpoint; for --config there is --lora-2")
    from reelweave.pipelines.configuration.config import resolve
    from reelweave.pipelines.configuration.train_config import TrainRunConfig

    config = resolve(TrainRunConfig, options.config, [])
    if isinstance(layout, InTraining):
        return load_published_on(world, config.train, layout.parallel, options.lora)
    return load_published(config.train, world.device, options.lora, world)


def _one(job: "SamplingRun", world: "World", path: Path) -> "Made":
    from reelweave.pipelines.sampling.outputs import OneOutput
    from reelweave.train.distributed.first_rank import on_first

    outputs = OneOutput(path)
    on_first(world, outputs.prepare)
    return _with_progress(job, world, [0], outputs)


def _many(job: "SamplingRun", world: "World", folder: Path) -> "Made":
    from reelweave.loader.storage import open_storage
    from reelweave.pipelines.sampling.outputs import Outputs
    from reelweave.train.distributed.first_rank import on_first
    from reelweave.train.distributed.run_lease import alone

    outputs, expected = Outputs(folder), job.expected
    on_first(world, outputs.prepare)
    with alone(world, [open_storage(str(folder))], "reelweave sample"):
        pending: list[int] = on_first(world, lambda: outputs.pending(expected))
        try:
            return _with_progress(job, world, pending, outputs)
        finally:
            if world.rank == 0:
                outputs.write_manifest(len(expected))


def _with_progress(job: "SamplingRun", world: "World", indices: list[int], outputs: Any) -> "Made":
    """Run with progress bars on the first rank: solver steps of its videos, and videos of all."""
    rounds = job.rounds(indices)
    with ExitStack() as stack:
        if world.rank > 0 or not rounds:
            return job.run(indices, outputs, lambda: None, lambda: None)
        bars = stack.enter_context(progress_bars())
        total = sum(job.steps(numbers_of_round[0]) for numbers_of_round in rounds)
        task = bars.add_task("sampling", total=total, count="", note="")
        done = iter(rounds)
        finished = 0

        def after_round() -> None:
            nonlocal finished
            finished += len(next(done))
            bars.update(task, note=f"{finished:,} of {len(indices):,} videos" if len(indices) > 1 else "")

        return job.run(indices, outputs, lambda: bars.advance(task), after_round)


def _degrees(
    options: argparse.Namespace, world_size: int, trained: "Trained", configs: Sequence[SampleConfig]
) -> "Advised":
    from reelweave.pipelines.sampling.advised import Advised, advise_layout

    layout = read_layout(options.layout)
    if layout is None:
        return advise_layout(world_size, trained, configs)
    if not isinstance(layout, InTraining):
        return Advised(layout, f"--layout {options.layout}", found=True)
    if any(config.cache for config in configs):
        raise UsageError(
            f"--layout {options.layout}: ranks that gather weights together run all blocks; leave --cache out"
        )
    named = options.layout if layout.parallel else f"{TRAINING}: train.parallel of {trained.checkpoint}"
    return Advised(SampleLayoutConfig(), f"--layout {named}", found=True)


def _describe_degrees(degrees: SampleLayoutConfig) -> str:
    degree_words = [f"{name}={n}" for name in ("cfg", "ring", "ulysses") if (n := getattr(degrees, name)) > 1]
    rest = "all others make other videos"
    return (
        f"taken instead: {', '.join(degree_words)}, and {rest}"
        if degree_words
        else "each rank makes videos of its own"
    )


def _print(result: dict[str, Any], config: SampleConfig) -> None:
    layout = " ".join(f"{name}={degree}" for name, degree in result["layout"].items() if degree != 1)
    seconds = ", ".join(f"{stage} {value:.1f} s" for stage, value in result["seconds"].items())
    # What was made: one video, or those of a file of prompts.
    if "prompt" in result:
        summary = f"{config.frames} frames of {config.height}x{config.width} at {result['fps']} fps, seed {config.seed}"
    else:
        made = pluralize(result["made"], "video")
        summary = f"{made} made, {result['videos']:,} in all; {result['manifest']} names them"
    lines = [
        f"{result['out']}: {summary}, {result['weights']} weights of {result['checkpoint']}",
        f"{layout or 'one process'}: {seconds}; {sum(result['sent_bytes']):,} bytes sent between ranks",
    ]
    # What a decode took, and what a cache cost in quality.
    lines += [
        f"decode of {'x'.join(map(str, plan['latents']))} latents: {plan['tiles']} tiles, {plan['peak_gib']} GiB at the"
        " peak"
        for plan in result["decode"]
    ]
    if (quality := result["cache_quality"]) is not None:
        alike = "" if quality["ssim"] is None else f", SSIM {quality['ssim']:.3f}"
        lines.append(
            f"cache: {quality['hits']} of {quality['evaluations']} evaluations skipped blocks in the first video,"
            f" {quality['psnr_db']:.1f} dB{alike} to the same without"
        )
    for line in lines:
        stdout().print(line, markup=False, soft_wrap=True)
