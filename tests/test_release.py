"""A release: `make dist` of the files that the images copy, its wheel installed by itself, and the changelog."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from tests.media import write_video
from tests.thorough import nightly, thorough

ROOT = Path(__file__).parent.parent
PACKAGES = ("curate", "loader", "pipelines", "train")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KERNELS = "reelweave/train/kernels/cuda/csrc/"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` writes, from the Makefile and what the images copy."""
    tree = tmp_path_factory.mktemp("tree")
    dockerfile = (ROOT / "infra" / "Dockerfile").read_text()
    copied = [
        name for line in re.findall(r"^COPY (?!infra)(.+) \S+$", dockerfile, re.M) for name in line.split()
    ]
    for name in ("Makefile", "MANIFEST.in", *copied):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tree / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, tree)
    (tree / "tests").mkdir()
    (tree / "tests" / "test_own.py").touch()
    command = ["make", "--old-file", ".venv/.installed", "dist", f"BIN={Path(sys.executable).parent}"]
    clock = {"SOURCE_DATE_EPOCH": "1700000000", "UV_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tree, env={**os.environ, **clock}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return dist / f"reelweave-{PROJECT['version']}-py3-none-any.whl"


def files(folder: str) -> set[str]:
    found = (
        path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {f"reelweave/{path.relative_to(ROOT).as_posix()}" for path in found}


@thorough
def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    sources = [path for path in (ROOT / "csrc").iterdir() if path.suffix in (".cu", ".cuh", ".h")]
    kernels = {KERNELS + path.name: path.read_bytes() for path in sources}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert {name: archive.read(name) for name in names if name.startswith(KERNELS)} == kernels
    assert len(kernels) > 10
    facade = {f"reelweave/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    assert names == facade | kernels.keys() | {name for package in PACKAGES for name in files(package)}


@thorough
def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folder = f"reelweave-{PROJECT['version']}.dist-info"
        about = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
        assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
        # The clock of the commit, so that two builds of it have the same bytes.
        assert {info.date_time[0] for info in archive.infolist()} == {2023}
    assert (about["Name"], about["Version"]) == ("reelweave", PROJECT["version"])
    assert set(about.get_all("Provides-Extra")) == PROJECT["optional-dependencies"].keys()


@thorough
def test_sums_name_both_archives_and_the_sources_hold_no_tests(dist: Path) -> None:
    subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, check=True, capture_output=True
    )
    named = {line.split()[1] for line in (dist / "SHA256SUMS").read_text().splitlines()}
    archives = {path.name for path in dist.glob("reelweave-*")}
    assert named == archives
    with tarfile.open(dist / f"reelweave-{PROJECT['version']}.tar.gz") as archive:
        inside = {Path(name).parts[1] for name in archive.getnames() if "/" in name}
    own = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert inside == own | {"reelweave", "reelweave.egg-info"}


@thorough
def test_the_sources_build_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / f"reelweave-{PROJECT['version']}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    build = [Path(sys.executable).parent / "uv", "build", "--quiet", "--wheel", "--no-build-isolation"]
    command = [*build, "--python", sys.executable, "--out-dir", tmp_path / "again"]
    clock = {"SOURCE_DATE_EPOCH": "1700000000", "UV_OFFLINE": "1"}
    subprocess.run(command, cwd=tree, env={**os.environ, **clock}, check=True, capture_output=True)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True)
    return target


def start(installed: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, where it finds the installed wheel and libraries, but no checkout (``-S``: no .pth)."""
    paths = os.pathsep.join((str(installed), sysconfig.get_path("purelib")))
    env = {"PYTHONPATH": paths, "PATH": "", "HOME": str(folder)}
    command = [sys.executable, "-S", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def run(installed: Path, folder: Path, *words: object) -> str:
    done = start(installed, folder, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@thorough
def test_the_wheel_runs_from_a_bare_folder(installed: Path, tmp_path: Path) -> None:
    command = installed / "bin" / "reelweave"
    assert run(installed, tmp_path, command, "--version") == f"reelweave {PROJECT['version']}\n"
    # A configuration from the wheel's data files, by code from the wheel.
    shipped = installed / "reelweave" / "pipelines" / "configs" / "train.yaml"
    shipped.write_text(shipped.read_text().replace("seed: 0", "seed: 77"))
    assert "seed: 77" in run(installed, tmp_path, command, "config", "show", "train")
    listed = run(installed, tmp_path, command, "curate", "--recipe", "list")
    recipes = sorted(path.stem for path in (ROOT / "pipelines" / "configs" / "recipes").glob("*.yaml"))
    assert [line.split()[0] for line in listed.splitlines()] == recipes


@thorough
def test_a_stage_named_by_its_former_module_is_told_the_new_one(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    stage = "stages.camera.use=curate.models.camera:CameraMotion"
    command = installed / "bin" / "reelweave"
    done = start(installed, tmp_path, command, "curate", "raw", "--out", "clips", "--set", stage)
    assert done.returncode == 2
    assert "reelweave.curate.models.camera" in done.stderr


@thorough
def test_the_wheel_installs_one_name(installed: Path) -> None:
    about = f"reelweave-{PROJECT['version']}.dist-info"
    assert {path.name for path in installed.iterdir()} == {"bin", "reelweave", about}
    assert (installed / about / "top_level.txt").read_text() == "reelweave\n"


OWN_TRAIN = """
from reelweave import BucketConfig, Compression, CurateConfig, StreamConfig, VideoStream, curate, open_dataset

if __name__ == "__main__":
    curate(["raw"], "clips", CurateConfig.model_validate({"run": {"runner": "sequential"}}))
    buckets = BucketConfig(
        frames=(17,), sizes=((32, 48),), max_text_tokens=77, memory_tokens=200,
        compression=Compression(frames=4, height=16, width=16, causal=True),
    )
    stream = VideoStream(open_dataset("clips"), StreamConfig(buckets=buckets), rank=0, world_size=1)
    print(next(iter(stream)).captions[0])
"""


@nightly
@pytest.mark.parametrize("kind", ["files", "folders"])
def test_a_user_names_modules_as_our_packages(installed: Path, tmp_path: Path, kind: str) -> None:
    """A curation, a stream and a training, where a user's own modules have the names of all our packages."""
    for number in range(2):
        write_video(tmp_path / f"raw/{number}.mp4", (55,), size=(320, 192), first_scene=number)
        (tmp_path / f"raw/{number}.txt").write_text("a red kite over the sea")
    for name in PACKAGES:
        own = tmp_path / (f"{name}.py" if kind == "files" else f"{name}/__init__.py")
        own.parent.mkdir(exist_ok=True)
        own.write_text("raise SystemExit('a module of the user was imported')\n")
    (tmp_path / ("train.py" if kind == "files" else "train/__main__.py")).write_text(OWN_TRAIN)
    if kind == "folders":
        (tmp_path / "train" / "__init__.py").write_text("")
    assert run(installed, tmp_path, "-m", "train") == "a red kite over the sea\n"
    config = installed / "reelweave" / "pipelines" / "configs" / "train.yaml"
    changes = (
        "dataset=clips", "out=run", "stream.buckets.frames=[17]", "stream.buckets.sizes=[[32,48]]",
        "stream.buckets.memory_tokens=200", "train.dtype=float32", "train.model.layers=1", "train.model.hidden=96",
        "train.model.heads=4", "train.schedule.total_steps=2",
    )  # fmt: skip
    words = [word for change in changes for word in ("--set", change)]
    run(installed, tmp_path, installed / "bin" / "reelweave", "train", "--config", config, *words)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2


def test_images_are_tagged_with_the_version() -> None:
    tags = [
        tag
        for path in (ROOT / "infra").rglob("*")
        if path.is_file()
        for tag in re.findall(r"REGISTRY/reelweave-\w+:(\S+)", path.read_text())
    ]
    assert len(tags) > 4
    assert set(tags) == {PROJECT["version"]}


@thorough
def test_the_sums_are_signed_and_checked_as_the_page_says(dist: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is missing")
    page = (ROOT / "CONTRIBUTING.md").read_text()
    sign, verify = re.findall(r"^    (ssh-keygen -Y .*)$", page, re.M)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "KEY"], check=True)
    (tmp_path / "dist").mkdir()
    sums = tmp_path / "dist" / "SHA256SUMS"
    shutil.copy(dist / "SHA256SUMS", sums)
    (tmp_path / "SIGNERS").write_text(f"you@example.org {(tmp_path / 'KEY.pub').read_text()}")

    def run(command: str) -> int:
        return subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True).returncode

    assert (run(sign), run(verify)) == (0, 0)
    sums.write_text(sums.read_text().replace("0", "1", 1))
    assert run(verify) != 0


KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def faults(changelog: str, version: str) -> list[str]:
    """What is wrong with a changelog beside the version that the project says."""
    (title, body), *sections = (
        section.split("\n", 1) for section in re.split(r"^## ", changelog, flags=re.M)[1:]
    )
    found = [] if title == "[Unreleased]" else [f"{title} stands first"]
    headings = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading, _ in sections]
    found += [heading for (heading, _), match in zip(sections, headings, strict=True) if not match]
    released = [(Version(match[1]), match[2]) for match in headings if match]
    if released != sorted(set(released), reverse=True):
        found.append("versions do not go back in time")
    found += sorted(set(re.findall(r"^### (.+)$", changelog, re.M)) - KINDS)
    newest = released[0][0] if released else Version("0")
    # The commit of a release has nothing that is not released; whatever comes next makes another version.
    if not (Version(version) > newest if body.strip() else Version(version) == newest):
        found.append(f"{version} beside {newest}")
    return found


def test_the_changelog_is_in_order_and_fits_the_version() -> None:
    assert faults((ROOT / "CHANGELOG.md").read_text(), PROJECT["version"]) == []


RELEASED = "## [Unreleased]\n\n## [0.2.0] - 2027-01-02\n### Fixed\n- b\n## [0.1.0] - 2026-12-01\n- a\n"
MORE = RELEASED.replace("[Unreleased]\n", "[Unreleased]\n### Added\n- c\n")


@pytest.mark.parametrize(
    ("changelog", "version", "count"),
    [
        (RELEASED, "0.2.0", 0),
        (MORE, "0.3.0", 0),
        (MORE, "0.2.0", 1),  # forgot to raise the version
        (RELEASED, "0.3.0", 1),  # a release without its section
        (RELEASED.replace("0.1.0", "0.4.0"), "0.2.0", 1),
        (RELEASED.replace("2027-01-02", "soon"), "0.1.0", 1),
        (RELEASED.replace("## [Unreleased]\n", ""), "0.3.0", 1),
        (RELEASED.replace("### Fixed", "### Mended"), "0.2.0", 1),
    ],
)
def test_a_changelog_out_of_order_is_noticed(changelog: str, version: str, count: int) -> None:
    assert len(faults(changelog, version)) == count
