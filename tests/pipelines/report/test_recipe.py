"""A dataset made with a recipe: what each filter takes beside what was published, from one recipe to another."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.configuration.recipes.files import read_recipe, recipe_names
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.numbers.compared import compared_numbers
from reelweave.pipelines.report.numbers.dataset import dataset_numbers
from reelweave.pipelines.report.numbers.recipe import RecipeFigures
from reelweave.pipelines.report.sections.recipe import recipe_section
from tests.commands import reelweave
from tests.media import write_video
from tests.thorough import but

OWN = """
name: mine
summary: ours
sources: {s: here}
published_yield: half of all
kept_share: 0.5
filters:
  - name: lengths
    published: 1 to 10 s
    source: s
    keys: {spans.min_clip_s: 1.0}
    published_yield: most
    kept_share: 0.9
  - name: sides
    published: 150 pixels
    source: s
    keys: {filters.min_short_side_px: 150}
    comparable: false
    remark: ours
  - {name: seconds, published: 1.9 s, source: s, keys: {filters.min_duration_s: 1.9}}
  - name: taste
    published: at least 5
    source: s
    keys: {filters.min_aesthetic: 5}
    needs: {keys: [aesthetic.weights], give: --set aesthetic.weights=F}
  - {name: captions, published: '0.2', source: s, missing: no such score}
  - {name: <b>decoder</b>, published: reads, source: s, built_in: the probe}
"""
SEQUENTIAL = ("--set", "run.runner=sequential", "--set", "run.isolate=false")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (55, 30), size=(320, 192))
    write_video(folder / "small.mp4", (30, 52), size=(192, 128), first_scene=5)
    write_video(folder / "short.mp4", (12, 50), size=(320, 192), first_scene=8)
    return folder


@pytest.fixture(scope="module")
def made(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    (out / "mine.yaml").write_text(OWN)
    done = reelweave("curate", raw, "--out", out / "ds", "--recipe", out / "mine.yaml", *SEQUENTIAL, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["recipe"]
    states = {one["name"]: one["state"] for one in told["filters"]}
    assert (told["name"], states["sides"], states["taste"], states["captions"]) == (
        "mine",
        "runs",
        "needs",
        "missing",
    )
    for words in (
        "runs: lengths (spans.min_clip_s=1)",
        "needs a model, left out: taste",
        "cannot run: captions",
    ):
        assert words in done.stderr
    return out / "ds"


def figures_of(dataset: Path) -> RecipeFigures:
    figures = dataset_numbers(open_dataset(dataset), default_config(StorageConfig())).recipe
    assert figures is not None
    return figures


def test_each_filter_counts_what_it_takes_of_what_those_before_left(made: Path) -> None:
    figures = figures_of(made)
    scores = open_dataset(made).scores.to_pylist(maps_as_pydicts="strict")
    steps = {step.name: step for step in figures.steps}
    small = [row for row in scores if row["scores"]["short_side_px"] < 150]
    large = [row for row in scores if row["scores"]["short_side_px"] >= 150]
    brief = [row for row in large if row["scores"]["duration_s"] < 1.9]
    assert small
    assert brief
    sides, seconds = steps["sides"].yields, steps["seconds"].yields
    assert sides is not None
    assert seconds is not None
    assert (sides.clips, sides.removed) == (len(scores), len(small))
    assert (seconds.clips, seconds.removed) == (len(large), len(brief))
    assert seconds.removed_seconds == pytest.approx(sum(row["end_s"] - row["start_s"] for row in brief))
    assert (figures.clips, figures.passed) == (len(scores), len(large) - len(brief))
    assert figures.kept_clips == sum(row["state"] == "kept" for row in scores)
    # The length of spans is counted by the accounting, before clips are cut.
    lengths = steps["lengths"].yields
    totals = open_dataset(made).accounting.to_pylist()
    assert lengths is not None
    assert (lengths.clips, lengths.removed) == (len(totals), sum(row["stage"] == "spans" for row in totals))
    assert lengths.removed > 0
    assert [steps[name].yields for name in ("taste", "captions", "<b>decoder</b>")] == [None] * 3
    assert [steps[name].state for name in ("taste", "captions", "<b>decoder</b>")] == [
        "needs",
        "missing",
        "runs",
    ]


def test_page_terminal_and_json_show_published_beside_ours(made: Path) -> None:
    page = (made / "report/index.html").read_text()
    assert "Recipe mine: what each filter takes" in page
    assert "&lt;b&gt;decoder&lt;/b&gt;" in page
    assert "<b>decoder" not in page
    for words in (
        "filters.min_short_side_px=150 (not comparable)",
        "half of all",
        "not published",
        "no such score",
    ):
        assert words in page
    done = reelweave("report", made)
    assert "Recipe mine" in done.stdout
    assert "pass the 4 filters of 6 that are applied" in done.stdout
    assert "Published yield of all 6: half of all." in done.stdout
    told = json.loads(reelweave("report", made, "--json").stdout)["recipe"]
    assert (told["name"], told["published_kept_share"], len(told["steps"])) == ("mine", 0.5, 6)
    assert told["steps"][0]["published_kept_share"] == 0.9
    assert told["steps"][1]["yields"]["kept_share"] == pytest.approx(
        1 - told["steps"][1]["yields"]["removed"] / told["clips"]
    )


def test_show_names_the_filters_that_reject_a_clip(made: Path) -> None:
    rows = open_dataset(made).scores.to_pylist(maps_as_pydicts="strict")
    small = next(row for row in rows if row["scores"]["short_side_px"] < 150)
    kept = next(row for row in rows if row["state"] == "kept")
    assert "recipe mine: rejected by sides" in reelweave("show", made, small["key"]).stdout
    assert "recipe mine: no score is beyond its filters" in reelweave("show", made, kept["key"]).stdout
    told = json.loads(reelweave("show", made, small["key"], "--json").stdout)["recipe"]
    assert told["name"] == "mine"
    assert "sides" in told["rejected_by"]


def test_the_kept_command_repeats_it_and_another_recipe_is_another_configuration(
    made: Path, raw: Path, tmp_path: Path
) -> None:
    kept = made / "curate.yaml"
    repeated = shlex.split(kept.read_text().splitlines()[1].removeprefix("# reelweave "))
    again = reelweave(*repeated, "--json")
    assert json.loads(again.stdout)["already_there"] is True
    assert "recipe mine: ours" in again.stderr
    # Another one is refused without --update, and decodes nothing with it.
    dataset = tmp_path / "ds"
    shutil.copytree(made, dataset)
    to_other = (
        "curate",
        raw,
        "--out",
        dataset,
        "--recipe",
        "standard",
        *SEQUENTIAL,
        "--set",
        "spans.min_clip_s=1",
        "--set",
        "cut.crop_bars=false",
        "--set",
        "scores.graphics=false",
        "--set",
        "filters.max_static_graphic=null",
    )
    refused = reelweave(*to_other)
    assert refused.returncode == 2
    assert "recipe" in refused.stderr
    assert "recipe.digest" not in refused.stderr
    done = reelweave(*to_other, "--set", "filters.min_sharpness=null", "--update")
    assert done.returncode == 0, done.stderr
    assert "this update cuts no source" in done.stderr
    standard = figures_of(dataset)
    assert (standard.name, standard.digest) == ("standard", read_recipe("standard").record()["digest"])
    config = open_dataset(dataset).manifest.config["curate"]
    assert (config["filters"]["min_short_side_px"], config["filters"]["max_flicker"]) == (128, 1)
    # And back to none.
    done = reelweave("curate", raw, "--out", dataset, *SEQUENTIAL, "--set", "spans.min_clip_s=1", "--update")
    assert done.returncode == 0, done.stderr
    assert dataset_numbers(open_dataset(dataset), default_config(StorageConfig())).recipe is None
    assert "recipe-section" not in (dataset / "report/index.html").read_text()


def test_datasets_side_by_side_name_their_recipes_and_no_more_of_them(made: Path, tmp_path: Path) -> None:
    other = tmp_path / "ds"
    shutil.copytree(made, other)
    manifest = open_dataset(other).manifest
    manifest.config["curate"]["recipe"] = read_recipe("standard").record()
    (other / "manifest.json").write_bytes(manifest.to_bytes())
    told = compared_numbers([open_dataset(made), open_dataset(other)])["differences"]
    assert [row["key"] for row in told if "recipe" in row["key"]] == [
        "curate.recipe.name",
        "curate.recipe.digest",
    ]


def test_a_recipe_changed_in_the_manifest_is_said_and_not_shown(made: Path, tmp_path: Path) -> None:
    dataset = tmp_path / "ds"
    shutil.copytree(made, dataset)
    manifest = open_dataset(dataset).manifest
    manifest.config["curate"]["recipe"]["filters"][0]["name"] = "other"
    (dataset / "manifest.json").write_bytes(manifest.to_bytes())
    section = recipe_section(figures_of(dataset))
    assert section is not None
    assert section["rows"] == []
    assert "not one that this version can read" in section["note"]


@pytest.mark.parametrize("name", but(["open-sora-plan-1.3"], recipe_names()))
def test_every_recipe_runs(name: str, raw: Path, tmp_path: Path) -> None:
    done = reelweave("curate", raw, "--out", tmp_path / "ds", "--recipe", name, *SEQUENTIAL)
    rows = open_dataset(tmp_path / "ds").manifest.totals.accounting
    assert done.returncode == 0, done.stderr
    assert sum(rows.values()) > 0
    assert rows["failed"] == 0
    figures = figures_of(tmp_path / "ds")
    assert figures.name == name
    assert len(figures.steps) == len(read_recipe(name).filters)
    assert "is not read" not in done.stderr
