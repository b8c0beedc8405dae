"""What a person sees of the program: its exit status, its output, its words.

One call of each kind (help, a wrong call, a failure, a long run, JSON) is a process of its own, as a person's is.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.loader.dataset import open_dataset
from reelweave.pipelines.cli import COMMANDS, parse_words
from reelweave.pipelines.commands.begin.demo import try_next
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.terminal.program import program
from tests.commands import reelweave
from tests.foreign_tars import by_tarfile, picture
from tests.media import write_video
from tests.s3server import make_bucket, s3_client, s3_server
from tests.thorough import beyond, thorough


def alone(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "reelweave", *map(str, arguments)],
        # Paths of any length stay on one line.
        env=os.environ | {"COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write_video(folder / "a.mp4", (55, 60), size=(320, 192))
    write_video(folder / "b [bold]x[/bold].mp4", (52,), size=(320, 192), first_scene=5)
    (folder / "a.txt").write_text("<script>alert(1)</script> counting blocks")
    (folder / "empty.mp4").touch()
    return folder


@pytest.fixture(scope="module")
def dataset(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "dataset"
    done = alone("curate", raw, "--out", out, "--set", "run.runner=sequential")
    assert done.returncode == 0, done.stderr
    assert "empty.mp4" in done.stdout
    assert "the file is empty" in done.stdout
    return out


def test_a_full_disk_behind_the_output_is_said() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "reelweave.pipelines.cli", "config", "schema", "curate"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=240,
            check=False,
        )
    where = f"standard output or the temporary folder {tempfile.gettempdir()} (TMPDIR)"
    said = f"reelweave: no room to write {where}: No space left on device\n"
    assert (done.returncode, done.stderr) == (os.EX_TEMPFAIL, said)


def test_help_names_every_command() -> None:
    done = alone("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert command in done.stdout


def test_help_imports_no_library() -> None:
    code = (
        "import sys\nfrom reelweave.pipelines.cli import parse_words\n"
        "try: parse_words(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'numpy', 'pyarrow', 'rich', 'pydantic', 'yaml'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("asked", "told"), beyond(1, [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
)
def test_threads_of_pytorch_sleep_while_they_wait_unless_asked_otherwise(
    asked: dict[str, str], told: str
) -> None:
    """OpenMP prints what it read when PyTorch loads it, here without the rest of PyTorch."""
    [folder] = find_spec("torch").submodule_search_locations
    [openmp] = Path(folder, "lib").glob("libgomp*.so*")
    code = (
        "from reelweave.pipelines.cli import main\nmain(['config', 'explain', 'memory_tokens'])\n"
        f"import ctypes\nctypes.CDLL({str(openmp)!r})"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "OMP_DISPLAY_ENV": "TRUE", **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"OMP_WAIT_POLICY = '{told}'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["repot"], "did you mean report?"),
        (["curate", "x", "--out", "y", "--confg", "z"], "did you mean --config?"),
        (["bench", "shot"], "did you mean shots?"),
        (["state", "inspct"], "did you mean inspect?"),
        (["config", "init", "trian"], "did you mean train?"),
    ],
)
def test_a_mistyped_word_is_met_with_the_nearest(words: list[str], said: str) -> None:
    done = reelweave(*words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train", "--config", "a.yaml", "--config", "b.yaml"],
            "--config is given twice: b.yaml holds, a.yaml does not",
        ),
        (["index", "x", "--shards=a*", "--shards", "b*"], "--shards is given twice: b* holds, a* does not"),
        (
            ["config", "show", "curate", "--config=a", "--config=b"],
            "--config is given twice: b holds, a does not",
        ),
        (
            ["train", "--config", "a", "--set", "seed=1", "--set=seed=2", "--set", "out=r", "--set", "out=r"],
            "--set seed is given twice: 2 holds, 1 does not",
        ),
        (["train", "--config", "a.yaml", "--config", "a.yaml"], None),
        (["-q", "train", "--config", "a.yaml", "--config", "b.yaml"], None),
    ],
)
def test_of_an_option_that_is_given_twice_it_is_said_which_holds(words: list[str], said: str | None) -> None:
    done = reelweave(*words)
    assert done.returncode in (1, 2)
    assert [line for line in done.stderr.splitlines() if "twice" in line] == (
        [f"reelweave: {said}"] if said else []
    )


@pytest.mark.parametrize("option", ["key", "source"])
def test_all_samples_named_on_the_command_line_are_removed(option: str, tmp_path: Path) -> None:
    by_tarfile(tmp_path / "a.tar", [(name, {"jpg": picture(at)}) for at, name in enumerate("abcd")])
    assert reelweave("index", tmp_path).returncode == 0
    names = open_dataset(tmp_path).column(option).to_pylist()
    words = [word for name in [*names[:2], "gone"] for word in (f"--{option}", name)]
    done = reelweave("remove", tmp_path, *words)
    assert "removed 2 samples" in done.stdout
    assert f"1 {option} is not in the dataset: gone" in done.stdout
    assert open_dataset(tmp_path).column("key").to_pylist() == ["c", "d"]


def test_verbose_shows_where_an_error_came_from(tmp_path: Path) -> None:
    for words in (["-v", "verify", tmp_path], ["verify", tmp_path, "-v"]):
        done = reelweave(*words)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
    assert "Traceback" not in reelweave("verify", tmp_path).stderr


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    script.write_text(reelweave("--completion", "bash").stdout)
    ask = (
        'source "$0"; COMP_WORDS=(reelweave "$@"); COMP_CWORD=$#; COMP_LINE="${COMP_WORDS[*]}";'
        ' _shtab_reelweave; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    for words, expected in (
        (["pl"], "plan"),
        (["curate", "--forec"], "--forecast"),
        (["config", "ex"], "explain"),
    ):
        done = subprocess.run(
            ["bash", "-c", ask, script, *words], capture_output=True, text=True, check=True, timeout=240
        )
        assert expected in done.stdout.split(), (words, done)


def test_hints_name_the_program_as_it_can_be_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "bin" / "reelweave"
    script.parent.mkdir()
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == str(script)
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "reelweave"
    monkeypatch.setattr(sys, "argv", ["/a/pipelines/cli.py"])
    assert program().endswith(" -m reelweave")


def test_what_the_demo_proposes_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/a/pipelines/cli.py"])
    own = [one.command for one in try_next(tmp_path / "my videos", tmp_path / "an out")]
    called = [command.removeprefix(f"{program()} ") for command in own if command.startswith(program())]
    assert len(called) == len(own) - 1  # the other is TensorBoard's
    for command in called:
        assert parse_words(shlex.split(command)).command == command.split()[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    done = reelweave(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: reelweave {command}" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["curate"],
        ["curate", "nowhere", "--out", "x"],
        ["curate", ".", "--out", "x", "--set", "cut.crff=1"],
        ["curate", ".", "--out", "x", "--config", "gone.yaml"],
        ["curate", ".", "--out", "ftp://host/x"],
        ["curate", "ftp://host/a.mp4", "--out", "x"],
        ["verify"],
        ["report", "x", "--set", "buckets.frames=seven"],
        ["train"],
        ["train", "--config", "gone.yaml"],
        ["bench", "speed"],
        ["bench", "shots", "--videos", "nowhere"],
    ],
)
def test_a_wrong_call_exits_with_2_and_a_sentence(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    done = reelweave(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert list(tmp_path.iterdir()) == []


@thorough
def test_a_process_of_a_wrong_call_exits_with_2_and_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "reelweave.pipelines.cli", "curate", ".", "--out", "x", "--set", "cut.crff=1"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    assert list(tmp_path.iterdir()) == []


def test_an_index_of_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = reelweave("index", tmp_path / "nosuch")
    assert done.returncode == 2
    assert "nosuch does not exist" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "call"), [("verify", alone), ("report", reelweave)])
def test_a_missing_dataset_exits_with_1(
    tmp_path: Path, command: str, call: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = call(command, tmp_path / "nosuch")
    assert done.returncode == 1
    assert "nosuch does not exist" in done.stderr
    done = call(command, tmp_path)
    assert done.returncode == 1
    assert "no finished dataset" in done.stderr
    assert "does not exist" not in done.stderr
    assert str(tmp_path) in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_curate_prints_its_accounting_as_json(raw: Path, dataset: Path) -> None:
    before = (dataset / "report/index.html").stat().st_mtime_ns
    done = alone("curate", raw, "--out", dataset, "--set", "run.runner=sequential", "--json")
    result = json.loads(done.stdout)
    assert result["already_there"] is True
    assert Path(result["report"]).stat().st_mtime_ns == before
    assert result["accounting"] == {"kept": 3, "filtered": 0, "duplicate": 0, "failed": 1}
    assert [(total["state"], total["stage"], total["rows"]) for total in result["stages"]] == [
        ("kept", "cut", 3),
        ("failed", "probe", 1),
    ]


def test_a_dataset_keeps_the_configuration_that_repeats_it(raw: Path, dataset: Path) -> None:
    kept = dataset / "curate.yaml"
    assert resolve(CurateConfig, kept, []) == resolve(CurateConfig, None, ["run.runner=sequential"])
    repeated = shlex.split(kept.read_text().splitlines()[1].removeprefix("# reelweave "))
    assert repeated == ["curate", str(raw), "--out", str(dataset), "--config", str(kept)]
    done = reelweave(*repeated, "--json")
    assert json.loads(done.stdout)["already_there"] is True


@thorough
def test_a_dataset_on_s3_keeps_the_configuration_that_repeats_it(tmp_path: Path) -> None:
    write_video(tmp_path / "raw" / "a.mp4", (52,), size=(160, 96))
    with s3_server() as endpoint:
        make_bucket(endpoint, "clips")
        changes = [f"storage.endpoint_url={endpoint}", "run.runner=sequential", "cut.crf=30"]
        asked = ["curate", tmp_path / "raw", "--out", "s3://clips/set", "--json"]
        done = reelweave(*asked, *(word for change in changes for word in ("--set", change)))
        assert done.returncode == 0, done.stderr
        text = s3_client(endpoint).get_object(Bucket="clips", Key="set/curate.yaml")["Body"].read().decode()
        repeated = shlex.split(text.splitlines()[1].removeprefix("# reelweave "))
        again = reelweave(*repeated, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["already_there"] is True


def test_curate_is_refused_over_another_dataset(raw: Path, dataset: Path) -> None:
    done = reelweave("curate", raw, "--out", dataset, "--set", "cut.crf=40")
    assert done.returncode == 2
    assert "cut.crf" in done.stderr


def test_curate_exits_with_1_where_failures_leave_nothing(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.mp4").write_bytes(b"no video")
    (raw / "b.mp4").write_bytes(b"none either")
    write_video(raw / "short.mp4", (10,))
    for extra in ((), ("--json",)):  # a new dataset, then one that is there already
        done = reelweave("curate", raw, "--out", tmp_path / "out", "--set", "run.runner=sequential", *extra)
        assert done.returncode == 1
        assert "holds no sample: 2 of 3 sources and clips failed, 2 of them at probe (" in done.stderr
        assert "--retry-failed" in done.stderr
    assert json.loads(done.stdout)["samples"] == 0


def test_curate_exits_with_0_where_thresholds_leave_nothing(tmp_path: Path) -> None:
    write_video(tmp_path / "raw/short.mp4", (10,))
    options = ("--set", "run.runner=sequential", "--set", "run.isolate=false")
    assert reelweave("curate", tmp_path / "raw", "--out", tmp_path / "out", *options).returncode == 0


def test_verify_passes_and_names_shard_and_key_after_a_flipped_byte(dataset: Path) -> None:
    done = reelweave("verify", dataset, "--json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    [shard] = dataset.glob("shards/000000-*.tar")
    whole = shard.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 3] ^= 16
    shard.write_bytes(damaged)
    done = reelweave("verify", dataset)
    shard.write_bytes(whole)
    assert done.returncode == 1
    assert f"shards/{shard.name}" in done.stdout
    keys = json.loads(reelweave("report", dataset, "--json").stdout)
    assert keys["samples"] == 3


def test_report_prints_bucket_statistics_as_json(dataset: Path) -> None:
    done = reelweave("report", dataset, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(bucket["samples"] for bucket in result["buckets"]) + len(result["unassigned"]) == 3
    assert Path(result["report"]).is_file()


@thorough
def test_bench_shots_prints_precision_and_recall_per_kind_and_file(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", (40, 45, 40), size=(320, 192))
    transitions = [{"type": "cut", "start_frame": at - 1, "end_frame": at} for at in (40, 85)]
    truth = {"file": "a.mp4", "frames": 125, "transitions": transitions, "not_cuts": []}
    (tmp_path / "a.cuts.json").write_text(json.dumps(truth))
    done = reelweave("bench", "shots", "--videos", tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["hard"]["precision"], result["hard"]["recall"], result["hard"]["f1"]) == (1, 1, 1)
    assert result["gradual"]["false"] == 0
    assert result["files"][0]["file"] == "a.mp4"
    (tmp_path / "a.cuts.json").write_text("{}")
    done = reelweave("bench", "shots", "--videos", tmp_path)
    assert done.returncode == 2
    assert "a.cuts.json" in done.stderr


@thorough
def test_libraries_say_nothing_that_a_person_can_do_nothing_about() -> None:
    code = (
        "from reelweave.pipelines.terminal.noise import silence_noise\nsilence_noise()\nsilence_noise()\n"
        "import logging\nfrom diffusers.models.transformers import transformer_wan\n"
        "logging.getLogger('torch.utils._pytree').warning('another message')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.rstrip().endswith("another message")


def test_the_version_is_told() -> None:
    done = reelweave("--version")
    assert (done.returncode, done.stdout) == (0, f"reelweave {version('reelweave')}\n")


def test_ctrl_c_while_the_program_is_imported_shows_no_traceback() -> None:
    code = """
import sys
from importlib.abc import MetaPathFinder
class Interrupted(MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "reelweave.pipelines.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from reelweave.__main__ import main
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 130
    assert ended.stderr == "reelweave: interrupted; run the same command again\n"


def test_a_reader_that_has_gone_is_no_failure() -> None:
    """As ``reelweave --help | true``: all of it is still in the buffer when the command ends."""
    reads, writes = os.pipe()
    os.close(reads)
    called = [sys.executable, "-m", "reelweave.pipelines.cli", "--version"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(called, stdout=writes, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")


def test_prefixes_are_allowed_on_the_command_line(tmp_path: Path) -> None:
    done = reelweave("verify", tmp_path, "--allow", "s3://films/", "--allow", "films")
    assert done.returncode == 2
    assert "allowed_prefixes" in done.stderr
    done = reelweave("verify", tmp_path, "--allow", "s3://films/", "--allow", "/data")
    assert done.returncode == 1
    assert "manifest.json" in done.stderr
