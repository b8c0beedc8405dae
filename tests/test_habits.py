"""What contributors rely on: the tests near a change, the form of a subject, the index of the notes, the citation."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.changed import ROOT, imports_by_file, nearest_tests
from tests.commit_subject import faults


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    rooms = ("curate", "loader", "train", "pipelines", "tests")
    return imports_by_file(
        str(path.relative_to(ROOT)) for room in rooms for path in (ROOT / room).rglob("*.py")
    )


def test_the_nearest_tests_import_what_changed(graph) -> None:
    nearest = nearest_tests(["loader/plan/balance.py"], graph)
    first = [test for test, distance in nearest.items() if distance == 1]
    assert "tests/loader/plan/test_balance.py" in first
    assert all(
        "loader/plan/balance.py" in graph[test] or "architecture" in test or "words" in test for test in first
    )
    assert list(nearest.values()) == sorted(nearest.values())


def test_a_changed_test_is_its_own_nearest(graph) -> None:
    assert (
        next(iter(nearest_tests(["tests/test_words.py", "loader/errors.py"], graph))) == "tests/test_words.py"
    )


def test_pages_and_helpers_have_their_tests(graph) -> None:
    assert "tests/test_docs.py" in nearest_tests(["docs/curate.md"], graph)
    assert "tests/test_media.py" in nearest_tests(["tests/media.py"], graph)
    assert nearest_tests(["LICENSE"], graph) == {}


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("[loader] Count frames by their stamps\n\nEdit lists hide some.\n# comment\n", 0),
        ("[curate] Cut\n", 0),
        ("fixup! whatever\n", 0),
        ("Count frames\n", 1),
        ("[loader] counts frames.\nmore\n", 2),
        (f"[loader] {'A' * 70}\n", 1),
        ("", 1),
    ],
)
def test_a_subject_says_its_area_and_what_is_done(message: str, count: int) -> None:
    assert len(faults(message)) == count


def test_collecting_imports_nothing_that_few_tests_need(imported_early: list[str]) -> None:
    assert imported_early == [], "import it inside the tests that need it"


def test_every_note_stands_in_the_index_once() -> None:
    notes = ROOT / "docs" / "notes"
    linked = re.findall(r"\]\(([\w-]+)\.md\)", (notes / "README.md").read_text())
    assert sorted(linked) == sorted(path.stem for path in notes.glob("*.md") if path.stem != "README")


def test_the_citation_names_the_version_and_the_license() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert set(citation["keywords"]) == set(project["keywords"])


def test_hooks_and_forms_are_yaml() -> None:
    for path in (ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")):
        assert yaml.safe_load(Path(path).read_text())
