"""The hooks of the site; `make docs` builds it whole, and ends at every broken link."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml

import reelweave.curate as curate
import reelweave.loader as loader
import reelweave.train as train

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "site" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def led(hooks: ModuleType, uri: str, text: str) -> str:
    return hooks.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=uri)))


def test_links_lead_to_where_the_site_has_the_files(hooks: ModuleType) -> None:
    for uri, before, after in (
        ("stream.md", "[a](blend.md#b)", "[a](blend.md#b)"),
        ("stream.md", "[a](../examples/my_model.py)", "[a](repository/examples/my_model.py)"),
        ("benchmarks/curate.md", "[a](../../SECURITY.md#b)", "[a](../repository/SECURITY.md#b)"),
        ("repository/infra/README.md", "[a](../docs/metrics.md)", "[a](../../metrics.md)"),
        ("repository/CHANGELOG.md", "[a](docs/benchmarks)", "[a](../benchmarks/README.md)"),
        ("repository/CHANGELOG.md", "[a](infra)", "[a](infra/README.md)"),
        # These stay, and mkdocs ends at them.
        ("stream.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        ("stream.md", "[a](../../outside.md)", "[a](../../outside.md)"),
    ):
        assert led(hooks, uri, before) == after


def test_the_pages_of_names_have_the_public_names_and_no_others(hooks: ModuleType) -> None:
    whole = hooks._every_name()
    for package in (loader, curate, train):
        page = hooks._names(package.__name__.removeprefix("reelweave."))
        assert sorted(re.findall(r"heading: (\w+)", page)) == package.__all__
        for name in package.__all__:
            (row,) = (line for line in whole.splitlines() if line.startswith(f"| [`{name}`]"))
            assert len(row.split(" | ")[2]) > 20, f"{name} has no sentence"


def test_a_page_that_would_fetch_something_is_refused(hooks: ModuleType, tmp_path: Path) -> None:
    config, page = SimpleNamespace(site_dir=str(tmp_path)), tmp_path / "a" / "index.html"
    page.parent.mkdir()
    page.write_text(
        '<link href="../style.css"><a href="https://host/">there</a><script src="/own.js"></script>'
    )
    hooks.on_post_build(config)
    for part in (
        '<script async src="https://host/x.js">',
        "<link rel=icon href=//host/x.css>",
        '<img src="http://host/x">',
    ):
        page.write_text(part)
        with pytest.raises(Exception, match=r"index\.html fetches <"):
            hooks.on_post_build(config)


def test_the_site_is_strict_and_asks_for_no_fonts() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["strict"]
    assert config["theme"]["font"] is False
    assert config["validation"]["nav"]["omitted_files"] == "warn"
    assert {"not_found", "anchors"} <= {
        key for key, level in config["validation"]["links"].items() if level == "warn"
    }
    plugins = {
        name for plugin in config["plugins"] for name in (plugin if isinstance(plugin, dict) else [plugin])
    }
    assert plugins == {"search", "mkdocstrings"}


def test_the_navigation_names_every_page_once(hooks: ModuleType) -> None:
    """What `make docs` checks, too, but seen by whoever adds a page and runs the tests alone."""

    def pages(nav: object) -> list[str]:
        if isinstance(nav, str):
            return [nav]
        return [page for one in (nav.values() if isinstance(nav, dict) else nav) for page in pages(one)]

    named = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    own = {page for page in named if not page.startswith("repository/")}
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(named) == len(set(named))
    assert own == written | {f"api/{name}.md" for name in ("index", *hooks.PACKAGES)}
    assert all((ROOT / page.removeprefix("repository/")).is_file() for page in set(named) - own)


def test_the_page_of_other_loops_shows_its_examples() -> None:
    """Tools that format Markdown take the lines of an include apart, and no build notices."""
    text = (ROOT / "docs/frameworks.md").read_text()
    shown = re.findall(r'^```python\n--8<-- "examples/stream_(\w+)\.py"\n```$', text, re.M)
    assert shown == ["ddp", "fsdp2", "lightning", "accelerate"]
