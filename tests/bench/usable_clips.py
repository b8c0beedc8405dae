"""What the filters keep of clips that were labelled by eye as usable or not: docs/benchmarks/usable_clips.md.

    python -m tests.bench.usable_clips FOOTAGE --work DIR [--half NAME ...] [--recipe NAME] [--set KEY=VALUE ...]

FOOTAGE holds the films that `usable_clips.json` names. They are curated into DIR once, with all scores; a further call
with the same DIR and other thresholds decides anew and decodes nothing. With `--scores DATASET` in place of `--work`,
thresholds of `filters` and of a recipe are applied to the scores of finished datasets, which takes a second: what
was cut, cropped and read stays as it is there. Thresholds are set on
`open` and `sealed` alone: `sealed2` is measured once, at the end.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from reelweave.curate.filters.config import FilterConfig
from reelweave.curate.filters.decision import decide
from reelweave.pipelines.configuration.recipes.given import resolve_curation

HALVES = ("open", "sealed", "sealed2")
LABELS = Path(__file__).with_name("usable_clips.json")
CROPPABLE = frozenset({"bars", "blurred_pillars"})
REASONS = frozenset(
    {
        "title", "logo", "graphic", "slideshow", "mark", "text", "duplicates", "flicker", "blur",
        "exposure", "screen", "blank", "still", "transition", "collage", "damage", "pattern",
    }
)  # fmt: skip
_COVERED = 0.5  # share of a labelled span that kept clips must cover
_EDGE_S = 0.15  # by which a clip that holds a labelled span may be shorter at each end


@dataclass(frozen=True)
class LabelledClip:
    """Clip that was looked at.

    Attributes:
        film: Name of the film in the footage.
        start_s: Start, seconds.
        end_s: End, seconds.
        labels: "good", or reasons against it.
    """

    film: str
    start_s: float
    end_s: float
    labels: frozenset[str]

    @property
    def name(self) -> str:
        """Name of the clip: film and start."""
        return f"{self.film}@{self.start_s:.2f}"

    @property
    def kind(self) -> str:
        """Class of the clip: "good", "croppable" where only bars are against it, "unsure", or "unusable"."""
        if "unsure" in self.labels:
            return "unsure"
        if self.labels & REASONS:
            return "unusable"
        return "croppable" if self.labels & CROPPABLE else "good"


@dataclass(frozen=True)
class Row:
    """Row of a dataset's accounting: what became of a span of a film."""

    start_s: float
    end_s: float
    state: str
    stage: str


def read_films(path: Path = LABELS) -> dict[str, Any]:
    """Return the films by name: where each is from, its half and its clips."""
    films: dict[str, Any] = json.loads(path.read_text())["films"]
    return films


def labelled_clips(films: Mapping[str, Any], *halves: str) -> list[LabelledClip]:
    """Return the clips of some halves.

    Raises:
        ValueError: a label is not one of the page's, or "good" stands beside a reason.
    """
    clips = [
        LabelledClip(name, start, end, frozenset(labels.split()))
        for name, film in sorted(films.items())
        if film["half"] in halves
        for start, end, labels in film["clips"]
    ]
    for clip in clips:
        unknown = clip.labels - REASONS - CROPPABLE - {"good", "unsure"}
        if unknown or not clip.labels or ("good" in clip.labels and len(clip.labels) > 1):
            raise ValueError(f"{clip.name}: these are no labels of one clip: {sorted(clip.labels)}")
    return clips


def absent_films(films: Mapping[str, Any], footage: Path) -> dict[str, str]:
    """Return which films the footage lacks, or holds other bytes of, and where each is from."""
    found = {}
    for name, film in films.items():
        path = footage / name
        what = "is missing" if not path.is_file() else ""
        if not what and hashlib.sha256(path.read_bytes()).hexdigest() != film["sha256"]:
            what = "holds other bytes"
        if what:
            found[name] = f"{what}: {film['path']} of {film['repository']} at {film['commit']}"
    return found


def fate_of(clip: LabelledClip, rows: Iterable[Row]) -> str:
    """Return what became of most of a clip: "kept", the stage that took it, or "lost" where no row covers it.

    A clip with nothing against it but a transition is "split" where shots end within it: no kept clip holds all of it.
    """
    shared: dict[str, float] = {}
    is_held = False
    for row in rows:
        is_whole = row.start_s <= clip.start_s + _EDGE_S and row.end_s >= clip.end_s - _EDGE_S
        is_held |= row.state == "kept" and is_whole
        seconds = min(row.end_s, clip.end_s) - max(row.start_s, clip.start_s)
        if seconds > 0:
            fate = "kept" if row.state == "kept" else row.stage or row.state
            shared[fate] = shared.get(fate, 0.0) + seconds
    if shared.pop("kept", 0.0) >= _COVERED * (clip.end_s - clip.start_s):
        return "kept" if is_held or clip.labels & REASONS != {"transition"} else "split"
    return max(shared, key=lambda fate: shared[fate], default="lost")


def read_accounting(dataset: Path) -> dict[str, list[Row]]:
    """Return the rows of a dataset's accounting by the film's name."""
    found: dict[str, list[Row]] = {}
    for row in pq.read_table(dataset / "accounting.parquet").to_pylist():
        if row["start_s"] is not None and row["end_s"] is not None:
            name = str(row["source"]).rsplit("/", 1)[-1]
            new = Row(row["start_s"], row["end_s"], row["state"], row["stage"] or "")
            found.setdefault(name, []).append(new)
    return found


def decide_anew(dataset: Path, filters: FilterConfig) -> dict[str, list[Row]]:
    """Return the rows of a dataset by the film's name, as other thresholds decide on its scores.

    A clip that is no duplicate goes by the thresholds alone: whether it was kept does not matter.
    """
    clips = {row["key"]: dict(row["scores"]) for row in pq.read_table(dataset / "scores.parquet").to_pylist()}
    found: dict[str, list[Row]] = {}
    for row in pq.read_table(dataset / "accounting.parquet").to_pylist():
        if row["start_s"] is None or row["end_s"] is None:
            continue
        state, stage = row["state"], row["stage"] or ""
        if row["key"] in clips and state != "duplicate":
            rejection = decide(clips[row["key"]], filters)
            state, stage = ("kept", "cut") if rejection is None else (rejection.state, rejection.stage)
        name = str(row["source"]).rsplit("/", 1)[-1]
        found.setdefault(name, []).append(Row(row["start_s"], row["end_s"], state, stage))
    return found


def curate(films: Sequence[Path], dataset: Path, options: Sequence[str]) -> None:
    """Curate the films, or decide anew about what is there, by the command that a user gives."""
    command = [
        sys.executable,
        "-m",
        "reelweave",
        "--quiet",
        "curate",
        *map(str, films),
        "--out",
        str(dataset),
    ]
    command += ["--set", "run.runner=sequential"]
    if not (dataset / "manifest.json").exists():
        subprocess.run(command, check=True, stdout=sys.stderr)
    subprocess.run([*command, "--update", *options], check=True, stdout=sys.stderr)


def table(clips: Sequence[LabelledClip], fates: Mapping[str, str]) -> Iterator[str]:
    """Yield a Markdown table: for each class and label how many clips were kept, and what took the others."""
    yield "| label | clips | kept | taken by |"
    yield "|---|---|---|---|"
    for kind in ("good", "croppable", "unusable"):
        yield _line(f"**{kind}**", [clip for clip in clips if clip.kind == kind], fates)
    for label in sorted(REASONS | CROPPABLE):
        chosen = [clip for clip in clips if label in clip.labels and clip.kind != "unsure"]
        if chosen:
            yield _line(f"`{label}`", chosen, fates)


def _line(title: str, clips: Sequence[LabelledClip], fates: Mapping[str, str]) -> str:
    counts = Counter(fates[clip.name] for clip in clips)
    kept = counts.pop("kept", 0)
    share = f"{kept} ({kept / len(clips):.0%})" if clips else "0"
    taken = ", ".join(f"{stage.removeprefix('filter.')} {count}" for stage, count in counts.most_common())
    return f"| {title} | {len(clips)} | {share} | {taken or '-'} |"


def wrong_ones(clips: Sequence[LabelledClip], fates: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each good or croppable clip that was not kept, and each unusable one that was."""
    for clip in clips:
        fate = fates[clip.name]
        if clip.kind in ("good", "croppable") and fate != "kept":
            yield f"{clip.kind}, taken by {fate}: {clip.name}"
        if clip.kind == "unusable" and fate == "kept":
            yield f"kept, {' '.join(sorted(clip.labels))}: {clip.name}"


def filter_setting(text: str) -> tuple[str, Any]:
    """Return key and value of ``filters.KEY=VALUE``.

    Raises:
        ValueError: the key is not one of `filters`.
    """
    key, _, value = text.partition("=")
    if not key.startswith("filters.") or not value:
        raise ValueError(f"{text}: with --scores only filters.KEY=VALUE can be set")
    return key.removeprefix("filters."), yaml.safe_load(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("footage", type=Path)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--work", type=Path, help="folder of the dataset, kept between calls")
    place.add_argument(
        "--scores", type=Path, nargs="+", metavar="DATASET", help="finished datasets of the films"
    )
    parser.add_argument("--half", choices=HALVES, default=["open"], nargs="+")
    parser.add_argument("--recipe", help="name of a recipe of `reelweave curate`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="keys")
    parser.add_argument("--wrong", action="store_true", help="list the wrong ones")
    arguments = parser.parse_args()
    films = {name: film for name, film in read_films().items() if film["half"] in arguments.half}
    absent = absent_films(films, arguments.footage)
    for name, why in absent.items():
        print(f"left out, {name} {why}", file=sys.stderr)
    clips = [clip for clip in labelled_clips(films, *arguments.half) if clip.film not in absent]
    rows: dict[str, list[Row]] = {}
    if arguments.scores:
        own = dict(map(filter_setting, arguments.keys))
        chosen = resolve_curation(arguments.recipe, None, []).filters.model_dump() if arguments.recipe else {}
        filters = FilterConfig.model_validate(chosen | own)
        for dataset in arguments.scores:
            rows |= decide_anew(dataset, filters)
    else:
        recipe = ["--recipe", arguments.recipe] if arguments.recipe else []
        options = [*recipe, *(part for key in arguments.keys for part in ("--set", key))]
        dataset = arguments.work / "-".join(arguments.half)
        curate([arguments.footage / name for name in sorted(films.keys() - absent.keys())], dataset, options)
        rows = read_accounting(dataset)
    fates = {clip.name: fate_of(clip, rows.get(clip.film, [])) for clip in clips}
    unsure = sum(clip.kind == "unsure" for clip in clips)
    print(
        f"{' '.join(arguments.half)}: {len(films) - len(absent)} films, {len(clips)} clips, {unsure} of them unsure; "
        f"{len(absent)} films absent"
    )
    print("\n".join(table(clips, fates)))
    if arguments.wrong:
        print("\n".join(wrong_ones(clips, fates)))


if __name__ == "__main__":
    main()
