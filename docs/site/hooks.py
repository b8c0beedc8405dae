"""Hooks of mkdocs: pages of the repository beside docs/, and pages of the public names."""

import ast
import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "infra/README.md")
"""Pages outside docs/ in the navigation; what pages link to comes along."""
REPOSITORY = "repository"
PACKAGES = ("loader", "curate", "train")

_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
_EXPORT = re.compile(r"^from \.([\w.]+) import (\w+) as \2$", re.MULTILINE)
_FETCHED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+""")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, all files that pages link to there, and the pages of public names."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    queue, found = [*pages, *BESIDE], set(pages) | set(BESIDE)
    while queue:
        path = queue.pop()
        if not path.startswith("docs/"):
            files.append(File.generated(config, _uri(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            linked = {_target(path, link) for link in _LINK.findall((ROOT / path).read_text())}
            fresh = {one for one in linked - found if one and not one.startswith("docs/")}
            queue += fresh
            found |= fresh
    for package in PACKAGES:
        files.append(File.generated(config, f"api/{package}.md", content=_names(package)))
    files.append(File.generated(config, "api/index.md", content=_every_name()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to files of the repository to where the site has them."""
    uri = page.file.src_uri
    if uri.startswith("api/"):
        return markdown
    path = uri.removeprefix(f"{REPOSITORY}/") if uri.startswith(f"{REPOSITORY}/") else f"docs/{uri}"

    def led(match: re.Match[str]) -> str:
        target = _target(path, match[1])
        return posixpath.relpath(_uri(target), posixpath.dirname(uri)) if target else match[1]

    return _LINK.sub(led, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse pages that a browser would fetch parts of from elsewhere."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if match := _FETCHED.search(path.read_text()):
            raise PluginError(f"{path} fetches {match[0]}")


def _target(path: str, link: str) -> str:
    """Return the file of the repository that a page's link leads to; empty if there is none."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    if (ROOT / target).is_dir():
        target = f"{target}/README.md"
    return target if (ROOT / target).is_file() and not target.startswith("..") else ""


def _uri(path: str) -> str:
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{REPOSITORY}/{path}"


def _exports(package: str) -> list[tuple[str, str]]:
    """Return each public name of a package with the module that it comes from, in the order of the stub."""
    text = (ROOT / package / "__init__.pyi").read_text()
    return [(name, f"reelweave.{package}.{module}") for module, name in _EXPORT.findall(text)]


def _names(package: str) -> str:
    about = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    lines = [f"# {package}", "", about.split("\n\n")[0], ""]
    for name, module in _exports(package):
        lines += [
            f"::: {module}.{name}",
            "    options:",
            f"      heading: {name}",
            f"      toc_label: {name}",
            "",
        ]
    return "\n".join(lines)


def _every_name() -> str:
    lines = [
        "# Public names",
        "",
        "`from reelweave import NAME` finds every name below, whichever package it comes from, and imports the",
        "package at its first use. The modules of a name are where it is defined; only the names here are kept stable.",
        "",
        "| name | package | |",
        "|---|---|---|",
    ]
    for package in PACKAGES:
        for name, module in sorted(_exports(package), key=lambda export: export[0].lower()):
            lines.append(f"| [`{name}`][{module}.{name}] | `{package}` | {_summary(name, module)} |")
    return "\n".join(lines) + "\n"


def _summary(name: str, module: str) -> str:
    """Return the first sentence about a name."""
    path = ROOT / module.removeprefix("reelweave.").replace(".", os.sep)
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            sentence = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
            return re.sub(r"([*|])", r"\\\1", sentence)
        if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
            return _summary(name, node.module or "")
    return ""
