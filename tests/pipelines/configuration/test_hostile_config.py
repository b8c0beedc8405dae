"""Configurations that were written to hurt, or by accident: an error in words with file, line and key, and quickly."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.loader.errors import UsageError
from reelweave.loader.storage.names import without_secrets
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.keys import models_of
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig
from reelweave.pipelines.report.buckets import ReportConfig
from tests.commands import reelweave
from tests.httpserver import web_server
from tests.thorough import but

MODELS = [CurateConfig, ReportConfig, TrainRunConfig, VaeRunConfig, ForecastConfig]
ALWAYS = (CurateConfig, ReportConfig, TrainRunConfig)
MOST_S = 5  # of the processor; the slowest takes half a second


def bomb(line: str) -> bytes:
    """Nine aliases of nine aliases of nine, ten times over."""
    lines = ["k0: &k0 " + line]
    lines += [f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9)}]" for n in range(1, 11)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"cut:\n  crf: !!int abc\n", ["line 2", "key cut.crf", "abc is no int"]),
        (b"cut:\n  crf: !!bool abc\n", ["line 2", "key cut.crf", "abc is no bool"]),
        (b"cut:\n  crf: !!float ''\n", ["line 2", "key cut.crf"]),
        (b"cut:\n  crf: !!timestamp 2024-13-45\n", ["line 2", "key cut.crf", "timestamp"]),
        (b"cut:\n  crf: 2024-13-45\n", ["line 2", "cut.crf", "'2024-13-45'"]),
        (b"2024-01-01: 3\n", ["line 1", "2024-01-01", "no known key"]),
        (b"cut: " + b"[" * 3000, ["line 1", "64 deep"]),
        (b"cut: " + b"{a: " * 3000, ["line 1", "64 deep"]),
        (b"cut:\n" + b"- " * 3000, ["line 2", "64 deep"]),
        (b"cut:\n  crf: " + b"9" * 5000, ["line 2", "key cut.crf", "digits"]),
        (b"cut:\n  crf: 0x" + b"f" * 5000, ["line 2", "key cut.crf", "digits"]),
        (b"cut:\n  crf: 1" + b":1" * 100_000, ["line 2", "key cut.crf", "digits"]),
        (b"cut:\n  crf: 18446744073709551616\n", ["line 2", "key cut.crf", "64 bits"]),
        (b"cut:\n  crf: .nan\n", ["line 2", "key cut.crf", "finite"]),
        (b"scan:\nspans:\n  min_clip_s: -.inf\n", ["line 3", "key spans.min_clip_s", "finite"]),
        (b"cut:\n  crf: 20\n  crf: 21\n", ["line 3", "crf is there twice"]),
        (bomb("[x, x, x, x, x, x, x, x, x]"), ["values, aliases counted"]),
        (bomb("{x: 1}").replace(b"[*", b"{<<: [*").replace(b"]\n", b"]}\n"), ["values, aliases counted"]),
        (b"cut: &a {crf: *a}\n", ["line 1", "within what it names"]),
        (b"cut: *nowhere\n", ["line 1", "undefined alias"]),
        (b"x: 1\n" * 200_000, ["larger than 256 KiB"]),
        (b"- 1\n" * 50_000, ["values"]),
        (b"cut:\n  preset: \xff\n", ["line 2", "UTF-8"]),
        ("cut: {}\n".encode("utf-16"), ["line 1", "UTF-8"]),
        (b"cut:\n\tcrf: 20\n", ["line 2", "'\\t'"]),
        (b"cut:\n  preset: \x01\n", ["line 2", "special characters"]),
        (b'cut:\n  preset: "\\0"\n', ["line 2", "key cut.preset", "null character"]),
        (b'cut:\n  preset: "\\UFFFFFFFF"\n', ["line 2", "out of range"]),
        (b'cut:\n  preset: "\\ud800"\n', ["line 2", "key cut.preset", "half of one"]),
        (b"%YAML " + b"1" * 5000 + b".1\n---\ncut: {}", ["line 1"]),
        (b"cut: {}\n---\ncut: {}\n", ["line 2", "another document"]),
        (b"? [a]\n: 1\n", ["line 1", "a key must be a word"]),
        (b"cut: !!map [1]\n", ["line 1"]),
        (b"cut: !!python/name:os.system ''\n", ["line 1", "key cut"]),
        (b"cut:\n  threads: 2\n  crff: 3\n", ["line 3", "cut.crff", "did you mean cut.crf?"]),
        (b"".join(b"k%d: 1\n" % n for n in range(9000)), ["k0", "and 8990 more"]),
        (b"k" * 1000 + b": 1\n", ["line 1", "kkk"]),
        (b"cut: http://user:PASS@host/x\n", ["line 1", "'http://host/x'"]),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "backslashreplace").decode(),
)
def test_a_hostile_file_ends_in_words_with_file_line_and_key(
    tmp_path: Path, data: bytes, words: list[str]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_bytes(data)
    began = time.process_time()
    with pytest.raises(UsageError) as caught:
        resolve(CurateConfig, file, [])
    assert time.process_time() - began < MOST_S
    said = str(caught.value)
    assert str(file) in said
    assert "PASS" not in said
    assert len(said) < 5000
    for word in words:
        assert word in said


def test_a_byte_order_mark_and_anchors_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_bytes("cut: &cut\n  crf: 30\n  preset: fast\nrun: {runner: sequential}\n".encode("utf-8-sig"))
    assert resolve(CurateConfig, file, ["cut.crf=25"]).cut.crf == 25
    file.write_text("spans: {min_clip_s: &s 3.0, max_clip_s: *s}\n")
    assert resolve(CurateConfig, file, []).spans.max_clip_s == 3.0


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "loop", Path("/dev/zero"), tmp_path / ("x" * 300)):
        with pytest.raises(UsageError, match=r"the configuration .* (is no file|cannot be read)"):
            resolve(CurateConfig, path, [])


@pytest.mark.parametrize(
    "override",
    [
        *(
            "",
            "=",
            "=1",
            ".=1",
            "cut..crf=1",
            ".cut=1",
            "cut.=1",
            "cut",
            "cut.crf",
            "a." * 5000 + "b=1",
            "cut=[",
            "cut={",
        ),
        *(
            "cut=" + "[" * 3000,
            "cut.crf=" + "9" * 5000,
            "cut.crf=.nan",
            "cut.crf=!!int abc",
            "cut.crf=2024-01-01",
        ),
        *(
            "cut.crf=\udcff",
            "\udcff=1",
            "cut.crf=\x00",
            "cut.crf='",
            "cut.crf=&a [*a]",
            "cut.crf=--- 1\n--- 2",
        ),
        *(
            "x" * 100_000,
            "x=" + "y" * 300_000,
            "http://user:PASS@host=1",
            "storage.endpoint_url=http://user:PASS@host",
        ),
        *("storage={endpoint_url: ['http://user:PASS@host']}", "cut.crf=s3://AK:PA/SS:PASS@bucket/x"),
        *("cut.crf=https://host/x?X-Amz-Signature=PASS", "cut.crf={a: 'http://user:PASS@host'}"),
    ],
    ids=lambda value: str(value)[:30].encode("ascii", "backslashreplace").decode(),
)
def test_a_malformed_override_is_an_error_in_words(override: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CurateConfig, None, [override])
    assert "PASS" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield ".".join((*path, name))
        for section in models_of(field.annotation):
            yield from leaves(section, (*path, name))


VALUES = [
    *(
        "null",
        "true",
        "[]",
        "{}",
        "[[1]]",
        "{a: 1}",
        "abc",
        "''",
        "'nan'",
        "'-inf'",
        "'1e999'",
        "-1",
        "0",
        "0.5",
    ),
    *(
        "18446744073709551615",
        "-9223372036854775808",
        "1e300",
        "'9999999999999999999999'",
        "2024-01-01",
        '"\\ud800"',
    ),
]


@pytest.mark.parametrize("model", but(ALWAYS, MODELS), ids=lambda model: model.__name__)
def test_every_key_takes_or_refuses_every_kind_of_value(model: type[BaseModel]) -> None:
    keys = list(dict.fromkeys(leaves(model)))
    assert len(keys) > 5
    given = ["dataset=x", "out=y"] if "dataset" in model.model_fields else []
    for key in keys:
        for value in VALUES:
            try:
                config = resolve(model, None, [*given, f"{key}={value}"])
            except UsageError:
                continue
            assert "NaN" not in config.model_dump_json(), f"{key}={value}"


def test_passwords_are_shown_by_no_command(tmp_path: Path) -> None:
    address = "http://user:PASS@127.0.0.1:1/x"
    for call in (
        [address],
        ["curate", "a.mp4", "--out", "s3://user:PASS@bucket/x"],
        ["curate", "a.mp4", "--out", tmp_path, "--set", f"storage.endpoint_url={address}"],
        ["curate", "a.mp4", "--out", tmp_path, "--set", "storage.endpoint_url", address],
        ["curate", "a.mp4", "--out", tmp_path, "--config", f"ftp{address}"],
        ["train", "--config", tmp_path / "none.yaml", "--set", address],
        ["state", "inspect", "s3://user:PASS@bucket/x"],
        ["plan", "--trace", address],
        ["fit", address],
        ["report", "x", "--endpoint-url", address],
        ["export", tmp_path, "--out", tmp_path, "--endpoint-url", address],
        ["verify", tmp_path, "--endpoint-url", address],
    ):
        done = reelweave(*call)
        assert done.returncode == 2, call
        assert "PASS" not in done.stdout + done.stderr, call
    done = reelweave(
        "curate", "a.mp4", "--out", tmp_path, "--config", address, "--set", "storage.max_attempts=1"
    )
    assert done.returncode == 1
    assert "PASS" not in done.stdout + done.stderr
    with web_server() as server:  # one that answers: eight attempts to connect to none take 15 s
        done = reelweave("state", "inspect", server.url.replace("//", "//user:PASS@") + "/x")
    assert server.requests
    assert done.returncode == 2
    assert "PASS" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("open http://u:p@h/x failed", "open http://***@h/x failed"),
        ("'http://u:p]x@[/x'", "'http://***@[/x'"),
        ("s3://AK:a/b@c@bucket/k", "s3://***@bucket/k"),
        ("https://h/v?token=abc&frame=3", "https://h/v?token=***&frame=3"),
        ("mail me@example.org about /a:b", "mail me@example.org about /a:b"),
    ],
)
def test_secrets_are_taken_out_of_any_text(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_taking_secrets_out_takes_linear_time() -> None:
    began = time.process_time()
    for text in ("http:/" * 100_000, "http://" + "@a" * 200_000, "?a=" * 100_000, "a" * 500_000):
        without_secrets(text)
    assert time.process_time() - began < MOST_S


def test_a_traceback_of_a_bug_shows_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    reelweave("--version")
    try:
        raise RuntimeError("http://user:PASS@host/x")
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    said = capsys.readouterr().err
    assert "RuntimeError: http://***@host/x" in said
    assert "test_hostile_config.py" in said
