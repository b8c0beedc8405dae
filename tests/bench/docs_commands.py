"""Every command that the documentation prints, run as printed in a folder that holds what it names.

    python -m tests.bench.docs_commands [--page docs/curate.md]... [--keep FOLDER] > commands.json

Each command is a process of its own. Buckets and objects are those of a real S3 server on loopback. Commands of a page
run in its order, in a folder of the page, in which `raw`, `ds`, `train.yaml`, `runs/first` and what else the pages take
for granted lie ready: small films, and a model that trains within seconds.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.printed import PAGES, ROOT, Printed, printed
from tests.s3server import make_bucket, s3_client, s3_server

SIZE = (320, 192)
BUCKETS = {
    "frames": [1, 5, 9],
    "sizes": [[48, 80], [80, 48]],
    "compression": {"frames": 2, "height": 8, "width": 8, "causal": True},
    "max_text_tokens": 65,
    "memory_tokens": 1000,
}
TRAIN = {
    "dataset": "many",
    "out": "runs/first",
    "stream": {"buckets": BUCKETS, "workers": 1},
    "train": {
        "device": "cpu",
        "dtype": "float32",
        "model": {"hidden": 48, "heads": 4, "layers": 2, "patch": [1, 2, 2]},
        "tokenizer": {"frames": 2, "height": 4, "width": 4},
        "schedule": {"total_steps": 3, "warmup_steps": 1},
        "checkpoint": {"every_steps": 1},
    },
    "validation": {
        "prompts": ["a red kite"],
        "every_steps": 3,
        "frames": 5,
        "height": 48,
        "width": 80,
        "steps": 2,
    },
}
# What stands for a thing of the reader's own, and for sizes that only a GPU samples within minutes.
NAMES = {
    "320x576": "48x80",
    "128x224": "48x80",
    "VIDEOS": "raw",
    "MY_VIDEOS": "raw",
    "INPUT": "raw",
    "new-videos": "more",
    "videos": "ds",
    "raw/": "raw",
    "URI": "their-tars",
    "DATASET": "ds",
    "SOURCE": "one.mp4",
    "RUN/checkpoints/step-000500": "runs/first/checkpoints/step-000002",
    "run/checkpoints/step-000500": "runs/first/checkpoints/step-000002",
    "A": "runs/first/checkpoints/step-000002",
    "B": "runs/first/checkpoints/step-000003",
    "FILE": "runs/first/checkpoints/step-000003",
    "FOLDER": "for-diffusers",
    "GLOB": "*.tar",
    "runs/distilled": "runs/first",
    "samples/step-500": "more",
    "samples/step-1000": "more",
    "samples/exact": "more",
    "samples/lp": "more",
    "real": "more",
    "N": "2",
    "F": "my-buckets.yaml",
    "DATASET|RUN": "ds",
    "RUN": "runs/first",
    "256p.yaml": "train.yaml",
    "720p.yaml": "train.yaml",
}


# Why a page or a command is not run.
LEFT_OUT = {
    "docs/finetune.md": "published weights: tests/train/models/test_lora.py runs these with tiny ones",
    "docs/finetune-vae.md": "published weights: tests/pipelines/test_train_vae.py runs these with tiny ones",
    "finetune_wan22_i2v_lora.yaml": "published weights: tests/pipelines/sampling/test_sample_wan.py runs tiny ones",
    "runs/animate": "a model that was trained on pictures: tests/pipelines/sampling/test_sample_options.py has one",
    "metrics": "it serves until SIGTERM: tests/infra/test_observability.py scrapes it",
    "runs/high": "published weights: tests/train/models/test_wan_training.py reads such runs of tiny ones",
    "pipelines/configs/train.yaml": "a quarter of an hour",
    "captions.backend=endpoint": "a server of models: tests/curate/caption/test_caption_endpoint.py has one",
    "infra/README.md": "a bucket in the cloud",
    "docs/operations.md": "a bucket in the cloud: tests/infra/test_operations.py walks the page against a server",
    "--serve": "it serves until Ctrl-C: tests/pipelines/report/test_serve.py",
    "130": "memory is measured on a GPU only: tests/pipelines/plans/test_fit.py fits a made-up one",
}


def left_out(command: Printed) -> str | None:
    """Return why a command is not run, if it is not."""
    return next((why for what, why in LEFT_OUT.items() if what in (command.page, *command.words)), None)


def words_of(command: Printed, folder: Path) -> list[str]:
    """Return a command's words with the reader's own things in place of placeholders."""
    names = dict(NAMES)
    if "--out" in command.words and command.words[0] in ("curate", "index"):
        names["URI"] = "out" if command.words[0] == "curate" else "their-tars"
    if "--world-size" in command.words:
        names |= {"DATASET": "many", "my-dataset": "many"}
    if "--like" in command.words or command.words[0] in ("show", "extract"):
        names["KEY"] = names["3f9a1c"] = json.loads((folder / "ds-keys.json").read_text())[0]
    words = [names.get(word, word) for word in command.words]
    return [word.replace("/models/", f"{folder}/models/") for word in words]


def run(arguments: Sequence[str], folder: Path, timeout_s: float = 900.0) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with its output kept."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        list(arguments),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def program(*arguments: str) -> list[str]:
    """Return the command line of `reelweave`."""
    return [sys.executable, "-m", "reelweave.pipelines.cli", *arguments]


def prepared(folder: Path) -> None:
    """Fill a folder with what the pages take for granted.

    Raises:
        RuntimeError: the program could not make it.
    """
    raw = folder / "raw"
    for number, name in enumerate(("one", "two", "three")):
        write_video(raw / f"{name}.mp4", (55,), size=SIZE, first_scene=number)
        (raw / f"{name}.txt").write_text(f"a red kite over the sea {number}")
    write_video(raw / "bad.mp4", (52,), size=SIZE, first_scene=7)
    write_video(folder / "more" / "four.mp4", (52,), size=SIZE, first_scene=5)
    write_video(folder / "clip.mp4", (52,), size=SIZE, first_scene=1)
    _picture(folder / "picture.jpg")
    _models(folder / "models")
    made(folder, "curate", "raw", "--out", "ds", "--set", "run.runner=sequential",
         "--set", "embed.backend=open_clip", "--set", "embed.model=models/clip-vit-l-14")  # fmt: skip
    made(folder, "curate", "raw", "--out", "my-dataset", "--set", "run.runner=sequential")
    import pyarrow.parquet as pq

    keys = pq.read_table(folder / "ds" / "index.parquet", columns=["key"]).column("key").to_pylist()
    (folder / "ds-keys.json").write_text(json.dumps(keys))
    (folder / "their-tars").mkdir()
    for tar in (folder / "ds" / "shards").glob("*.tar"):
        shutil.copy(tar, folder / "their-tars")
    clip = write_video(folder / "small.mp4", (20,), size=SIZE).read_bytes()
    write(folder / "many", [make_sample(f"key{number:04}", clip, 20, SIZE) for number in range(2400)])
    written(folder / "train.yaml", TRAIN)
    (folder / "captions.txt").write_text("a red kite over the sea\na wave at dusk\n")
    written(folder / "my-buckets.yaml", {"buckets": BUCKETS})
    shutil.copy(ROOT / "pipelines" / "configs" / "recipes" / "standard.yaml", folder / "mine.yaml")
    written(folder / "mix.yaml", {"splits": {"train": {"blend": [{"path": "ds"}, {"path": "many"}]}}})
    made(folder, "train", "--config", "train.yaml")
    shutil.copytree(folder / "runs" / "first", folder / "runs" / "second")
    shutil.copytree(folder / "my-dataset", folder / "other-dataset")
    written(folder / "demo-out" / "train.yaml", TRAIN)
    page = (ROOT / "docs" / "stages.md").read_text()
    for kind, name in (("python", "loop.py"), ("yaml", "my-stages.yaml")):
        (folder / name).write_text(page.split(f"```{kind}\n")[1].split("```")[0])
    block = (ROOT / "docs" / "inputs.md").read_text().partition("    path,start,end,caption\n")
    lines = [block[1], *block[2].partition("\n\n")[0].splitlines()]
    (folder / "segments.csv").write_text("".join(f"{line.strip()}\n" for line in lines))
    _trace(folder)
    cluster = {"nodes": 8, "gpus_per_node": 4, "distances": [["PIX", "NODE"], ["NODE", "PIX"]] * 2}
    written(folder / "cluster.yaml", cluster)
    rows = [f"{b},{s},{0.05 + 1e-5 * b * s + 3e-10 * b * s * s},{30 + 5e-4 * b * s}"
            for b in (1, 2, 4) for s in (2000, 4000, 8000, 16000, 32000)]  # fmt: skip
    (folder / "bench.csv").write_text("\n".join(["batch,length,step_s,peak_gib", *rows]))


def made(folder: Path, *arguments: str) -> None:
    """Run a command that must succeed."""
    done = run(program(*arguments), folder)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")


def written(path: Path, value: object) -> None:
    """Write a YAML file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(value))


def _trace(folder: Path) -> None:
    """Samples of two iterations, and a table of what each takes."""
    steps = [[(2, 33), (1, 65), (1, 1)], [(1, 129), (2, 17)]]
    samples = [
        [{"batch": batch, "frames": frames, "height": 480, "width": 832} for batch, frames in step]
        for step in steps
    ]
    (folder / "steps.json").write_text(json.dumps({"gpus": 32, "steps": samples}))
    rows = ["module,batch,frames,height,width,degree,seconds"]
    for batch, frames in {shape for step in steps for shape in step}:
        for degree in (1, 2, 4, 8):
            for module, second_s in (("vae", 0.02), ("dit", 0.3)):
                seconds = second_s * batch * frames * (1 / degree + 0.02 * degree)
                rows.append(f"{module},{batch},{frames},480,832,{degree},{seconds:.4f}")
    (folder / "seconds.csv").write_text("\n".join(rows))


def _picture(path: Path) -> None:
    from PIL import Image

    values = np.random.default_rng(0).integers(0, 255, (96, 160, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)


def _models(folder: Path) -> None:
    from tests.tiny_models import tiny_open_clip
    from tests.tiny_vlm import tiny_vlm

    tiny_open_clip(folder / "clip-vit-l-14")
    tiny_vlm(folder / "Qwen2.5-VL-7B-Instruct", says=["a red kite over the sea"])


def judged(command: Printed, folder: Path) -> dict[str, Any]:
    """Run one command and return what came of it."""
    words = words_of(command, folder)
    if words[0] in ("curate", "latents") and not {"--update", "--retry-failed", "--forecast"} & set(words):
        # The reader has no such dataset yet, or calls it otherwise.
        shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
    if words[0] == "train":
        shutil.rmtree(folder / "runs" / "first", ignore_errors=True)
    line = program(*words)
    if command.ranks:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(command.ranks)]
        line = [*torchrun, "-m", "reelweave.pipelines.cli", *words]
    start = time.monotonic()
    try:
        done = run(line, folder)
        status, told = done.returncode, done.stderr + done.stdout * (done.returncode != 0)
    except subprocess.TimeoutExpired as late:
        status, told = -1, f"not done after {late.timeout} s"
    found = {"command": str(command), "status": status, "seconds": round(time.monotonic() - start, 1)}
    found["stderr_lines"] = len(told.splitlines())
    if status:
        found["error"] = told[-600:]
    return found


def main() -> None:
    """Print one object per command; exit 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="append", default=[], help="only this page, as docs/curate.md")
    parser.add_argument("--keep", type=Path, help="folder to work in, kept")
    options = parser.parse_args()
    work = options.keep or Path(tempfile.mkdtemp(prefix="docs-"))
    pages = [page for page in PAGES if not options.page or page.relative_to(ROOT).as_posix() in options.page]
    failed = 0
    with s3_server() as endpoint:
        os.environ["AWS_ENDPOINT_URL"] = endpoint
        ready = work / "ready"
        prepared(ready)
        make_bucket(endpoint, "bucket")
        for path in ready.rglob("*"):
            folder, _, rest = path.relative_to(ready).as_posix().partition("/")
            # Other datasets of the pages' bucket are copies of ours.
            for name in {"ds": ("ds", "benchmark", "ds-2025")}.get(folder, (folder,)):
                if path.is_file() and folder in ("raw", "their-tars", "ds"):
                    s3_client(endpoint).put_object(
                        Bucket="bucket", Key=f"{name}/{rest}", Body=path.read_bytes()
                    )
        for page in pages:
            commands = list(printed(page))
            if not commands:
                continue
            folder = work / page.stem
            shutil.copytree(ready, folder)
            for command in commands:
                why = left_out(command)
                found = judged(command, folder) if why is None else {"command": str(command), "not_run": why}
                failed += found.get("status", 0) != 0
                print(json.dumps(found), flush=True)
            if options.keep is None:
                shutil.rmtree(folder)
    if options.keep is None:
        shutil.rmtree(work)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
