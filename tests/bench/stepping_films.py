"""Distance of sound from its pictures behind clocks that step back.

python -m tests.bench.stepping_films > table.md
"""

import itertools
import tempfile
from pathlib import Path

import numpy as np

from tests.cutting import curated
from tests.stepping import errors_s, stepping

_STEPS_S = (0.12, 0.36, 1.0, 3.0)
_WHO = {"both": (1, 1), "pictures": (1, 0), "sound": (0, 1)}


def _verdict(path: Path, out: Path) -> str:
    found = []
    for record, clip in curated(path, out, spans={"min_clip_s": 0.5}):
        if record.state != "kept":
            found.append(record.state)
        elif record.audio.startswith("none"):
            found.append("none")
        else:
            # An encoder of AAC fades in.
            off_s = [abs(off_s) for true_s, off_s in errors_s(clip) if true_s > 0]
            found.append("lost" if np.isnan(off_s).all() else f"{1000 * float(np.nanmax(off_s)):.1f}")
    return ", ".join(found)


def main() -> None:
    """Print the greatest distance in each clip, in milliseconds."""
    forms = ((".ts", 0), (".mkv", 0), (".mkv", 2), (".mp4", 0))
    print("| file | steps | " + " | ".join(f"{step_s:g} s" for step_s in _STEPS_S) + " |")
    print("|---|---|" + "---|" * len(_STEPS_S))
    with tempfile.TemporaryDirectory(prefix="reelweave-stepping-") as scratch:
        number = itertools.count()
        for (suffix, b_frames), who, resorted in itertools.product(forms, _WHO, (False, True)):
            if suffix == ".mp4" and who != "pictures":
                continue
            cells = []
            for step_s in _STEPS_S:
                path = Path(scratch) / f"{next(number)}{suffix}"
                back_s = [step_s * one for one in _WHO[who]]
                stepping(path, back_s, resorted=resorted, b_frames=b_frames)
                cells.append(_verdict(path, path.with_suffix("")))
            form = suffix[1:] + (", B-frames" if b_frames else "") + (", sorted" if resorted else "")
            print(f"| {form} | {who} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
