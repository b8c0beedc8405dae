"""The default runner with every model stage on machines of few and of many processors, as Ray counts them.

    python -m tests.bench.small_machines [--cpus 1 2 3 64] [--json]

Each case is a process of its own: 4 films, embeddings, captions and text embeddings by tiny models. Each must end with
the bytes that one process gives.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.media import write_video
from tests.tiny_models import tiny_open_clip, tiny_text_encoder
from tests.tiny_vlm import tiny_vlm

_LIMIT_S = 1200
_PROGRAM = """
import sys
cpus, arguments = int(sys.argv[1]), sys.argv[2:]
if cpus:
    import os
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
from pipelines.cli import main
sys.exit(main(arguments))
"""


def made(folder: Path) -> list[str]:
    """Films and models below a folder; the configuration that names them."""
    for number in range(4):
        write_video(folder / f"raw/{number}.mp4", (50, 50), first_scene=2 * number)
    tiny_open_clip(folder / "clip")
    tiny_vlm(folder / "vlm", says=("a red kite flies over the sea .",))
    tiny_text_encoder(folder / "t5", "t5")
    settings = {
        "embed.backend": "open_clip",
        "embed.model": folder / "clip",
        "captions.model": folder / "vlm",
        "captions.short_side_px": 32,
        "captions.max_new_tokens": 24,
        "text_embed.model": folder / "t5",
        "spans.min_clip_s": 1,
    }
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def tree(folder: Path) -> dict[str, bytes]:
    """Content of the dataset's files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
        and path.relative_to(folder).parts[0] in ("shards", "index.parquet", "manifest.json")
    }


def main() -> None:
    """Print one JSON line for each number of processors; 0 is one process without Ray."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpus", type=int, nargs="+", default=[1, 2, 3, 64])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reelweave-machines-") as name:
        place = Path(name)
        settings = made(place)
        expected: dict[str, bytes] = {}
        for cpus in (0, *options.cpus):
            out = place / f"out-{cpus}"
            kind = ["--set", f"run.runner={'ray' if cpus else 'sequential'}"]
            call = ["curate", str(place / "raw"), "--out", str(out), *settings, *kind]
            began = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, str(cpus), *call],
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
            found = tree(out) if done.returncode == 0 else {}
            expected = expected or found
            row = {
                "cpus": cpus,
                "exit": done.returncode,
                "seconds": round(time.monotonic() - began),
                "same_bytes": found == expected,
                "stderr_lines": len(done.stderr.splitlines()),
            }
            print(json.dumps(row), flush=True)
            print(done.stderr[-6000:], file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
