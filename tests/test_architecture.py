"""Who may import whom (DESIGN section 1), and that importing the loader stays light."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from reelweave.pipelines.terminal.extras import _EXTRAS

ROOT = Path(__file__).parent.parent
ROOMS = ("curate", "loader", "train", "pipelines")
MAY_IMPORT = {
    "loader": set(),
    "curate": {"loader"},
    "train": {"loader"},
    "pipelines": {"loader", "curate", "train"},
}
CONTRACT = (
    "reelweave.loader.dataset",
    "reelweave.loader.storage",
    "reelweave.loader.errors",
    "reelweave.loader.settings",
    "reelweave.loader.text",
    "reelweave.loader.pretrained",
    "reelweave.loader.base.processors",
    "reelweave.loader.base.operations",
    "reelweave.loader.base.compiled",
)
WHOLE = "reelweave.train.config.run"
DOORS = (
    "train/loop/",  # begins a run
    "train/sampling/trained/load.py",  # reads runs from checkpoints
    "train/sampling/in_training/",  # lays them out on ranks
)
"""Where the whole configuration of a training run may be held; components take their own."""
CURATION = "reelweave.curate.config"
CURATION_DOORS = (
    "curate/run/assembly.py",  # hands its parts to the components of a run
    "curate/run/curate.py",  # begins a run
    "curate/run/sample_run.py",  # begins one over a sample
)
"""Where the whole configuration of a curation may be held."""
HEAVY = {"ray", "transformers", "open_clip", "ortools", "torchvision", "decord", "scenedetect"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def statements(body: Iterable[ast.stmt], checked: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements, and whether only type checkers read them; no expression holds an import."""
    for node in body:
        yield node, checked
        only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        yield from statements(getattr(node, "body", ()), checked or only)
        for name in ("orelse", "finalbody"):
            yield from statements(getattr(node, name, ()), checked)
        for branch in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from statements(branch.body, checked)


@cache
def imported(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The imports of a module anywhere, and whether only type checkers read them."""
    found = []
    for node, checked in statements(parsed(path).body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert getattr(node, "level", 0) == 0, f"{path} imports relatively; write the room's name"
            found.append((node, checked))
    return found


def imports(path: Path, whole: bool) -> list[str]:
    """Names of imported modules: anywhere, or those that are imported with this one; ours by room."""
    nodes = [node for node, _ in imported(path)]
    if not whole:
        nodes = [node for node in nodes if node in parsed(path).body]
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        else:
            names.append(node.module or "")
    return [name.removeprefix("reelweave.") for name in names]


@cache
def modules(room: str) -> dict[Path, set[Path]]:
    """The modules of a room, and those that each imports anywhere but for type checkers; no package's own file."""
    named = {
        ".".join(("reelweave", *path.relative_to(ROOT).with_suffix("").parts)): path for path in files(room)
    }
    named = {name: path for name, path in named.items() if path.name != "__init__.py"}
    graph = {}
    for path in named.values():
        found = set()
        for node, checked in imported(path):
            if checked:
                continue
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            else:
                found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
        graph[path] = {named[name] for name in found & named.keys()} - {path}
    return graph


@cache
def files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_run_one_way(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(room)
        for name in imports(path, whole=True)
        if name.split(".")[0] in set(ROOMS) - {room} - MAY_IMPORT[room] or name.split(".")[0] == "tests"
    ]
    assert wrong == []


def tracked(*suffixes: str) -> list[Path]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        ROOT / name
        for name in done.stdout.splitlines()
        if name.endswith(suffixes) and (ROOT / name).is_file()
    ]


def test_every_room_has_one_address() -> None:
    """The folders stand at the top of the repository, and are imported as links in ``reelweave``, in any file."""
    assert {path.name: path.readlink() for path in (ROOT / "reelweave").iterdir() if path.is_symlink()} == {
        room: Path("..") / room for room in ROOMS
    }
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in tracked(".py")
        for node, _ in imported(path)
        for module in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
        if module.split(".")[0] in ROOMS
    ]
    assert wrong == []


def test_texts_name_modules_by_their_address() -> None:
    """Also strings, such as those that tests patch: from the repository's root another module would be found."""
    bare = re.compile(rf"(?<![\w./])(?:{'|'.join(ROOMS)})(?:\.\w+)+(?=[\s\"'`:),]|$)", re.MULTILINE)
    wrong = [
        f"{path.relative_to(ROOT)} names {name}"
        for path in tracked(".py", ".pyi", ".md", ".yaml", ".toml")
        if path.name not in ("CHANGELOG.md", "test_release.py")  # which say what was before
        for name in bare.findall(path.read_text())
        if any(
            (ROOT / one.replace(".", "/")).with_suffix(".py").exists()
            for one in (name, name.rpartition(".")[0])
        )
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_is_in_a_circle_of_imports(room: str) -> None:
    TopologicalSorter(modules(room)).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("room", ROOMS)
def test_no_folder_is_in_a_circle_of_imports(room: str) -> None:
    """At every level: neither two folders of one folder, nor a folder and a module beside it."""
    levels: dict[Path, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, found in modules(room).items():
        for other in found:
            at = Path(os.path.commonpath((path, other)))
            here, there = path.relative_to(at).parts[0], other.relative_to(at).parts[0]
            levels[at][here].add(there)
    for graph in levels.values():
        TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("room", ROOMS)
def test_the_page_shows_every_folder_below_those_it_imports(room: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    shown = re.findall(rf"^\| `{room}/(\w+)/` ", page, re.MULTILINE)
    graph: dict[str, set[str]] = defaultdict(set)
    for path, found in modules(room).items():
        for one in (path, *found):
            if len(parts := one.relative_to(ROOT / room).parts) > 1:
                graph[path.relative_to(ROOT / room).parts[0]].add(parts[0])
    folders = {path.parent.name for path in (ROOT / room).glob("*/__init__.py")}
    assert sorted(shown) == sorted(folders)
    wrong = [
        f"{folder} imports {other}, which stands below it"
        for number, folder in enumerate(shown)
        for other in graph[folder] - {folder}
        if other not in shown[:number]
    ]
    assert wrong == []


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:curate|loader|train|pipelines|csrc|tests)/[\w/]+\.\w+)`", page)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_files_are_locked_by_one_module_alone() -> None:
    locking = [path for room in ROOMS for path in files(room) if re.search(r"\bfcntl\b", path.read_text())]
    assert [str(path.relative_to(ROOT)) for path in locking] == ["loader/base/shared/locks.py"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_folder_says_what_it_holds(room: str) -> None:
    silent = [
        str(path.parent.relative_to(ROOT))
        for path in (ROOT / room).rglob("__init__.py")
        if not ast.get_docstring(parsed(path))
    ]
    assert silent == []


@pytest.mark.parametrize("room", ROOMS)
def test_no_folder_has_more_entries_than_a_person_takes_in(room: str) -> None:
    entries: dict[Path, set[str]] = defaultdict(set)
    for path in files(room):
        parts = path.relative_to(ROOT).parts
        for depth in range(1, len(parts)):
            entries[Path(*parts[:depth])].add(parts[depth])
    crowded = {str(folder): len(found - {"__init__.py"}) for folder, found in entries.items()}
    assert {folder: count for folder, count in crowded.items() if count > 15} == {}


def test_curate_uses_only_the_dataset_contract_of_the_loader() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files("curate")
        for name in imports(path, whole=True)
        if name.startswith("loader") and not f"reelweave.{name}".startswith(CONTRACT)
    ]
    assert wrong == []


def test_components_of_training_do_not_hold_the_whole_configuration() -> None:
    """It stops where a run is begun, or read from a checkpoint; parts go on (config/parts.py)."""
    holders = [
        path.relative_to(ROOT).as_posix()
        for path in files("train")
        if any(f"reelweave.{name}" == WHOLE for name in imports(path, whole=True))
    ]
    assert [path for path in holders if not path.startswith(DOORS)] == []


def test_components_of_curation_do_not_hold_the_whole_configuration() -> None:
    holders = [
        path.relative_to(ROOT).as_posix()
        for path in files("curate")
        for node, _ in imported(path)
        if isinstance(node, ast.ImportFrom)
        and node.module == CURATION
        and any(alias.name == "CurateConfig" for alias in node.names)
    ]
    assert sorted(holders) == sorted(CURATION_DOORS)


@pytest.mark.parametrize("room", ROOMS)
def test_heavy_libraries_are_imported_where_they_are_used(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(room)
        for name in imports(path, whole=False)
        if name.split(".")[0] in HEAVY
    ]
    assert wrong == []


def test_every_library_that_may_be_missing_has_advice() -> None:
    """Without one, a command says which extra brings it; those that no extra brings are named where they are used."""
    named_where_used = {
        "easyocr",
        "liger_kernel",
        "megatron",
        "rapidocr",
        "rapidocr_onnxruntime",
        "streaming",
        "umap",
        "vllm",
    }
    found = {
        name.split(".")[0]
        for room in ROOMS
        for path in files(room)
        for node, checked in imported(path)
        if not checked
        for name in (
            [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        )
    } - {*sys.stdlib_module_names, "reelweave"}
    always = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    always = [Requirement(one).name for one in always]
    for _ in range(2):  # urllib3 is botocore's, which is boto3's
        always += [
            Requirement(one).name
            for name in set(always)
            for one in requires(name) or ()
            if "extra" not in one
        ]
    owners = packages_distributions()
    bases = {canonicalize_name(one) for one in always}
    missing = {name for name in found if not bases & {canonicalize_name(one) for one in owners.get(name, ())}}
    assert missing - named_where_used - _EXTRAS.keys() == set()


def test_importing_the_loader_pulls_in_no_heavy_library_and_costs_less_than_what_it_stands_on() -> None:
    code = """
import os, sys, time
began = time.process_time()
import pyarrow, pydantic, numpy
floor, start = time.process_time() - began, time.process_time()
import reelweave.loader
own = time.process_time() - start
assert not {'torch', 'boto3', 'ray', 'av', 'webdataset', 'transformers'} & sys.modules.keys(), sorted(sys.modules)
assert own < floor, (own, floor)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_folder_of_the_loader_can_be_the_first_that_is_imported() -> None:
    """The graph above has no package's own file, which runs before any of its modules."""
    folders = [path for path in files("loader") if path.name == "__init__.py"]
    names = [".".join(("reelweave", *path.relative_to(ROOT).parent.parts)) for path in folders]
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for known in [known for known in sys.modules if known.startswith('reelweave.loader')]:\n"
        "        del sys.modules[known]\n"
        "    importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_tests_stand_in_the_folders_of_what_they_test(room):
    folders = {
        path.parent.relative_to(ROOT / "tests" / room) for path in (ROOT / "tests" / room).rglob("*.py")
    }
    missing = sorted(str(folder) for folder in folders if not (ROOT / room / folder).is_dir())
    assert not missing, f"tests/{room}/{missing[0]} has no folder {room}/{missing[0]}"
