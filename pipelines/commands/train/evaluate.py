"""Score sampled videos, folder by folder: flicker, motion, sharpness, and likeness to references.

Of a run, every validated step is scored once; the scores are kept in RUN/scores.jsonl and TensorBoard. No metric needs
a download. LPIPS and the likeness to captions take local weights.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from reelweave.loader.errors import UsageError
from reelweave.pipelines.terminal.console import print_json, progress_bars, stdout, table
from reelweave.pipelines.terminal.files import output_target, write_output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave evaluate`."""
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="folder of a run, for its validation videos; or videos of one checkpoint: a folder that"
        " `reelweave sample --prompts` wrote, or one of .mp4 files",
    )
    parser.add_argument(
        "--reference", type=Path, metavar="FOLDER", help="videos of the same names, for PSNR, SSIM and LPIPS"
    )
    parser.add_argument(
        "--lpips",
        type=Path,
        metavar="FILE",
        help="torchvision's VGG-16 weights, .pth or .safetensors, for LPIPS",
    )
    parser.add_argument(
        "--clip",
        metavar="MODEL",
        help="open_clip model that matches videos with their captions: a folder, or NAME:FILE",
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="features of the videos of the one folder, .npy [videos, features], for their Frechet distance",
    )
    parser.add_argument(
        "--reference-features", type=Path, metavar="FILE", help="features of real videos, for --features"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file with the scores of every video")


def run(options: argparse.Namespace) -> int:
    """Evaluate the folders and print a row for each."""
    if (options.features is None) != (options.reference_features is None):
        raise UsageError("--features and --reference-features belong together: give both, or none")
    if options.features is not None and len(options.folders) > 1:
        raise UsageError("--features are of one folder: evaluate one at a time")
    if options.lpips is not None and options.reference is None:
        raise UsageError("--lpips compares with --reference: give it, too")
    if options.out is not None:
        output_target(options.out, "--out")  # before hours of work
    from reelweave.pipelines.evaluation.model_checks import check_clip, check_lpips

    # Also before torch is imported, which takes seconds.
    if options.lpips is not None:
        check_lpips(options.lpips)
    if options.clip is not None:
        check_clip(options.clip)
    from reelweave.pipelines.evaluation.evaluate import Evaluator
    from reelweave.pipelines.evaluation.frechet import frechet_distance, read_features
    from reelweave.pipelines.evaluation.run_scores import RunScores, has_validation_videos, validated_sets
    from reelweave.pipelines.evaluation.videos import VideoSet, video_set

    settings = {
        name: None if (value := getattr(options, name)) is None else str(value)
        for name in ("reference", "lpips", "clip")
    }
    sets: list[tuple[VideoSet, RunScores | None]] = []
    for folder in options.folders:
        if has_validation_videos(folder):
            if options.features is not None:
                raise UsageError(f"--features are of one set of videos; name a step of {folder}/validation")
            run_scores = RunScores(folder, settings)
            sets += [(validation, run_scores) for validation in validated_sets(folder)]
        else:
            sets.append((video_set(folder), None))
    earlier = [None if scores is None else scores.find_known(videos) for videos, scores in sets]
    reference = None if options.reference is None else video_set(options.reference)
    distance = None
    if options.features is not None:
        distance = frechet_distance(
            read_features(options.features, "--features"),
            read_features(options.reference_features, "--reference-features"),
        )
    evaluator = Evaluator(reference, options.lpips, options.clip)
    for (one, _), line in zip(sets, earlier, strict=True):
        if line is None:
            evaluator.check(one)
    rows: list[dict[str, Any]] = []
    with progress_bars() as bars:
        total = sum(
            len(videos.paths) for (videos, _), line in zip(sets, earlier, strict=True) if line is None
        )
        task = bars.add_task("evaluating", total=total, count="", note="")
        for (one, scores), line in zip(sets, earlier, strict=True):
            if line is None:
                rows.append(evaluator.evaluate(one, lambda: bars.advance(task)))
                if scores is not None:
                    scores.add(one, rows[-1])
            else:
                keys = ("step", "videos", "cut_captions", "metrics", "by_video")
                shown = {name: line[name] for name in keys if name in line}
                rows.append({"folder": str(one.folder), **shown})
    if distance is not None:
        rows[0]["metrics"]["frechet_distance"] = distance
    result = {"folders": rows}
    if options.out is not None:
        write_output(options.out, json.dumps(result, ensure_ascii=False, indent=1).encode(), "--out")
    if options.json:
        print_json(result)
        return 0
    names = list(dict.fromkeys(name for row in rows for name in row["metrics"]))
    cells = [
        [row["folder"], "" if row["step"] is None else row["step"], row["videos"]]
        + ["" if (value := row["metrics"].get(name)) is None else value for name in names]
        for row in rows
    ]
    stdout().print(table("Mean scores", ["folder", "step", "videos", *names], cells))
    return 0
