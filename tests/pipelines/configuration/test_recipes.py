"""Recipes: those of the package are whole, a user's keys lie above them, and hostile files are refused in words."""

from pathlib import Path

import pytest
import yaml

from reelweave.curate.config import CurateConfig
from reelweave.loader.errors import UsageError
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.kept import kept_yaml
from reelweave.pipelines.configuration.recipes.files import (
    MOST_BYTES,
    all_settings,
    read_recipe,
    recipe_names,
)
from reelweave.pipelines.configuration.recipes.given import describe_recipe, filter_states, resolve_curation
from reelweave.pipelines.configuration.recipes.model import recipe_of
from reelweave.pipelines.configuration.recipes.page import recipes_page
from tests.commands import reelweave

DOCS = Path(__file__).parents[3] / "docs"
NAMES = recipe_names()
ENTRY = "  - {name: n, published: p, source: s, keys: {filters.min_motion: 0.01}}"
RED = 'published: "\\e[31m"'
HEAD = "name: mine\nsummary: ours\nsources: {s: here}\n"


def put(folder: Path, text: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(text)
    return str(file)


OWN = {"standard", "standard-ocr"}
"""Recipes that nobody else published: docs/benchmarks has what they are made of."""


def test_there_are_recipes() -> None:
    assert {"standard", "open-sora-1.2", "open-sora-plan-1.3"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_of_the_package_is_whole(name: str) -> None:
    recipe = read_recipe(name)
    assert recipe.name == name
    assert recipe_of(yaml.safe_load(yaml.safe_dump(recipe.record()))) == recipe
    # Every source is said, used, and can be looked up.
    assert {entry.source for entry in recipe.filters} == set(recipe.sources)
    for source in recipe.sources.values():
        assert "commit " in source or "arXiv" in source or name in OWN, source
    # What it sets, it sets: no key of it is left unread, and none is at another value.
    config = resolve_curation(name, None, [])
    values = config.model_dump(mode="json")
    states = filter_states(recipe, values)
    assert all(state.state in ("runs", "needs", "missing") for state in states)
    assert all(state.entry.needs for state in states if state.state == "needs")
    said = "\n".join(describe_recipe(config))
    assert all(entry.name in said for entry in recipe.filters)


def test_standard_needs_no_model() -> None:
    assert all(entry.keys and not entry.needs for entry in read_recipe("standard").filters)


def test_the_page_of_recipes_is_what_their_files_say() -> None:
    page = recipes_page([read_recipe(name) for name in NAMES])
    assert (DOCS / "recipes.md").read_text() == page, "run `make generated`"


def test_a_users_keys_lie_above_the_recipe_and_the_recipe_above_defaults(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("filters: {max_text_peak: 0.2, max_flicker: 5}\ncut: {crf: 30}\n")
    config = resolve_curation("standard", file, ["filters.max_flicker=null", "filters.min_contrast=1"])
    assert config.filters.max_slideshow == 0.5
    assert config.cut.crop_bars
    filters = config.filters
    assert (filters.max_text_peak, filters.max_flicker, filters.min_contrast) == (0.2, None, 1)
    assert (config.cut.crf, config.filters.min_short_side_px) == (30, 128)
    said = "\n".join(describe_recipe(config))
    assert "filters.max_text_peak is 0.2 by you, 0.11 in the recipe" in said
    assert "switched off by you: flicker" in said


def test_a_filter_that_needs_a_model_is_left_out_and_said_until_the_model_is_given() -> None:
    without = resolve_curation("open-sora-1.2", None, [])
    assert without.filters.min_aesthetic is None
    assert any("needs a model, left out: aesthetic score" in line for line in describe_recipe(without))
    given = resolve_curation("open-sora-1.2", None, ["embed.backend=open_clip", "aesthetic.weights=head.pth"])
    assert given.filters.min_aesthetic == 4.5
    assert not any("needs a model" in line for line in describe_recipe(given))


def test_a_threshold_on_a_stage_is_set_with_the_stage(tmp_path: Path) -> None:
    stage = tmp_path / "stage.py"
    stage.write_text(
        "from reelweave import CustomStage\n\n\nclass Dover(CustomStage):\n    scores = {'dover': 'quality'}\n\n"
        "    def __call__(self, clips):\n        return [{'dover': 1.0} for _ in clips]\n"
    )
    config = resolve_curation("open-sora-plan-1.3", None, [f"stages.dover.use={stage}:Dover"])
    assert config.filters.model_extra == {"min_dover": 0.0}
    assert resolve_curation("open-sora-plan-1.3", None, []).filters.model_extra == {}


def test_a_kept_configuration_holds_its_recipe_and_takes_no_other(tmp_path: Path) -> None:
    config = resolve_curation("standard", None, ["run.runner=sequential"])
    kept = tmp_path / "curate.yaml"
    kept.write_text(kept_yaml(config, ["curate"]))
    assert resolve_curation(None, kept, []) == config
    assert resolve_curation("standard", kept, []) == config
    with pytest.raises(UsageError, match=r"made with the recipe 'standard'.*give one of the two"):
        resolve_curation("open-sora-1.2", kept, [])
    kept.write_text(kept.read_text().replace("filters.max_flicker: 1", "filters.max_flicker: 4"))
    with pytest.raises(UsageError, match=r"curate\.yaml: recipe does not fit its digest"):
        resolve_curation(None, kept, [])
    with pytest.raises(UsageError, match=r"recipe\.summary is no recipe's"):
        resolve_curation(None, None, ["recipe.name=x"])


def test_a_dataset_without_a_recipe_is_what_it_was() -> None:
    assert "recipe" not in CurateConfig().content()
    assert resolve_curation(None, None, []) == resolve(CurateConfig, None, [])
    assert set(resolve_curation("standard", None, []).content()) - set(CurateConfig().content()) == {"recipe"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("standrad", ["did you mean standard?", "known: ", "open-sora-1.2"]),
        ("Open-Sora", ["did you mean open-sora"]),
        ("", ["no such recipe"]),
        ("\x1b[31mred", ["no such recipe"]),
        ("https://example.org/mine.yaml", ["local file"]),
        ("./none.yaml", ["cannot be read: No such file"]),
        (".", ["no such recipe"]),
        ("./", ["cannot be read: Is a directory"]),
        ("../configs/curate", ["cannot be read"]),
    ],
)
def test_an_unknown_recipe_is_refused_in_words(name: str, words: list[str], tmp_path: Path) -> None:
    done = reelweave("curate", tmp_path, "--out", tmp_path / "ds", f"--recipe={name}")
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["name", "required"]),
        ("[1]", ["no mapping"]),
        (f"{HEAD}filters:\n{ENTRY}\nsurprise: 1\n", ["line 6", "surprise", "no known key"]),
        (f"{HEAD}filters: []\n", ["line 4", "filters"]),
        (f"{HEAD}filters:\n" + f"{ENTRY}\n" * 41, ["filters", "at most 40"]),
        (f"{HEAD}filters:\n  - {{name: n, published: p, source: t, missing: m}}\n", ["source 't'"]),
        (
            f"{HEAD}filters:\n  - {{name: n, published: p, source: s}}\n",
            ["one of `keys`, `built_in` and `missing`"],
        ),
        (f"{HEAD}filters:\n{ENTRY[:-1]}, missing: m}}\n", ["one of `keys`"]),
        (f"{HEAD}filters:\n{ENTRY[:-1]}, comparable: false}}\n", ["'n' is not comparable"]),
        (
            f"{HEAD}filters:\n{ENTRY.replace('motion', 'motoin')}\n",
            ["min_motoin", "did you mean filters.min_motion"],
        ),
        (f"{HEAD}filters:\n{ENTRY.replace('0.01', 'fast')}\n", ["filters.min_motion", "'fast'"]),
        (f"{HEAD}filters:\n{ENTRY.replace('0.01', 'true')}\n", ["filters.min_motion", "boolean"]),
        (f"{HEAD}filters:\n{ENTRY.replace('0.01', '.nan')}\n", ["filters"]),
        (
            f"{HEAD}filters:\n{ENTRY}\n{ENTRY}\n",
            ["sets filters.min_motion, which the filter 'n' sets already"],
        ),
        (f"{HEAD}filters:\n{ENTRY}\nconfig: {{filters: {{min_motion: 1}}}}\n", ["which config sets already"]),
        (f"{HEAD}filters:\n{ENTRY}\nconfig: {{cut: {{crf: 99x}}}}\n", ["cut.crf", "99x"]),
        (
            f"{HEAD}filters:\n{ENTRY}\nconfig: {{stages: {{a: {{use: a.py:A}}}}}}\n",
            ["config.stages", "no section"],
        ),
        (f"{HEAD}filters:\n{ENTRY}\nconfig: {{run: {{runner: ray}}}}\n", ["config.run"]),
        (f"{HEAD}filters:\n{ENTRY.replace('filters.min_motion', 'storage.region')}\n", ["storage.region"]),
        (f"{HEAD}filters:\n{ENTRY.replace('filters.min_motion', 'stages.a.use')}\n", ["stages.a.use"]),
        (f"{HEAD}filters:\n{ENTRY.replace('published: p', 'published: {a: b}')}\n", ["published"]),
        (f"{HEAD}filters:\n{ENTRY.replace('published: p', RED)}\n", ["published", "control"]),
        (
            f"{HEAD}filters:\n{ENTRY.replace('published: p', 'published: ' + 'p' * 600)}\n",
            ["published", "500"],
        ),
        (
            HEAD + "a: &a [1]\n" + "".join(f"b{n}: &b{n} [{', '.join(['*a'] * 99)}]\n" for n in range(999)),
            ["mine.yaml"],
        ),
        (HEAD + "filters: !!python/object/apply:os.system ['true']\n", ["line 4"]),
        ("#" * (MOST_BYTES + 1), ["larger than 64 KiB"]),
    ],
)
def test_a_hostile_recipe_is_refused_with_file_and_key(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read_recipe(put(tmp_path, text))
    said = str(refused.value)
    assert "mine.yaml" in said
    assert all(word in said for word in words), said
    assert len(said) < 2000


def test_a_recipe_of_ones_own_runs_like_those_of_the_package(tmp_path: Path) -> None:
    text = f"{HEAD}filters:\n{ENTRY}\nconfig: {{cut: {{crf: 30}}}}\n".replace(
        "s: here", "s: https://me:pw@example.org/a"
    )
    config = resolve_curation(put(tmp_path, text), None, [])
    assert (config.filters.min_motion, config.cut.crf, config.recipe["name"]) == (0.01, 30, "mine")
    assert "pw" not in str(config.recipe)


def test_all_settings_of_a_recipe_are_a_configuration() -> None:
    for name in NAMES:
        CurateConfig.model_validate(all_settings(read_recipe(name)))


def test_config_show_says_which_values_are_of_the_recipe(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("filters: {min_sharpness: 0.2}\n")
    words = (
        "config",
        "show",
        "curate",
        "--recipe",
        "standard",
        "--config",
        own,
        "--set",
        "filters.max_flicker=4",
    )
    lines = {line.strip().partition(":")[0]: line for line in reelweave(*words).stdout.splitlines()}
    assert lines["max_slideshow"].endswith("0.5  # recipe standard")
    assert lines["min_sharpness"].endswith(f"0.2  # {own}, line 1")
    assert lines["max_flicker"].endswith("4.0  # --set")
    assert lines["min_fps"].endswith("null  # default")
    refused = reelweave("config", "show", "train", "--recipe", "standard")
    assert refused.returncode == 2
    assert "--recipe is of a curation" in refused.stderr


def test_a_value_of_the_recipe_that_a_users_forbids_is_named_with_the_recipe() -> None:
    with pytest.raises(UsageError, match=r"spans"):
        resolve_curation("panda-70m", None, ["spans.max_clip_s=2"])


def test_the_list_has_a_line_for_each_recipe() -> None:
    done = reelweave("curate", "--recipe", "list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES
