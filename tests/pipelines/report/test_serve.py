"""`reelweave report --serve`: a clip plays in the browser, and nothing else can be had from the server."""

import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest

from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.dataset.tables.parquet import to_rows
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.commands.look.report import report_files
from reelweave.pipelines.report.buckets import default_config
from reelweave.pipelines.report.serve.dataset_pages import DatasetPages
from reelweave.pipelines.report.serve.server import Pages, ReportServer
from tests.browser import Browser
from tests.commands import reelweave
from tests.loader.stream_clips import make_sample, write
from tests.s3server import make_bucket, s3_server
from tests.thorough import thorough

Answer = tuple[int, dict[str, str], bytes]


@contextmanager
def running(pages: Pages, host: str = "127.0.0.1") -> Iterator[ReportServer]:
    with ReportServer(pages, host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def served(dataset: Dataset, config: StorageConfig, host: str = "127.0.0.1") -> Iterator[ReportServer]:
    with running(DatasetPages(dataset, *report_files(dataset, default_config(config))), host) as server:
        yield server


@pytest.fixture(scope="module")
def server(curated: Path) -> Iterator[ReportServer]:
    with served(open_dataset(curated), StorageConfig()) as started:
        yield started


def ask(server: ReportServer, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask for a path behind the token."""
    return ask_anyhow(server, f"/{server.token}{path}", method, **headers)


def ask_anyhow(server: ReportServer, path: str, method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def clip_of(dataset: Path, state: str) -> tuple[str, bytes]:
    """Key and bytes of a clip with this state."""
    opened = open_dataset(dataset)
    key = next(row["key"] for row in to_rows(opened.accounting) if row["state"] == state)
    if state == "kept":
        return key, opened.read_media(opened.row_numbers[key])
    (path,) = (dataset / ".ledger/clips").glob(f"{key}-*.mp4")
    return key, path.read_bytes()


@pytest.mark.parametrize("state", ["kept", "filtered"])
def test_clips_come_whole_and_in_parts(server: ReportServer, curated: Path, state: str) -> None:
    key, clip = clip_of(curated, state)
    status, headers, body = ask(server, f"/clip/{key}.mp4")
    assert (status, body) == (200, clip)
    assert headers["Content-Type"] == "video/mp4"
    last = len(clip) - 1
    for asked, start, end in (
        ("bytes=0-", 0, last),
        ("bytes=10-19", 10, 19),
        (f"bytes={last}-999999999", last, last),
        ("bytes=-7", last - 6, last),
    ):
        status, headers, body = ask(server, f"/clip/{key}.mp4", Range=asked)
        assert (status, body) == (206, clip[start : end + 1])
        assert headers["Content-Range"] == f"bytes {start}-{end}/{len(clip)}"
    assert ask(server, f"/clip/{key}.mp4", Range=f"bytes={len(clip)}-")[0] == 416
    for ignored in ("bytes=5-3", "bytes=0-1,3-4", "pages=1-2", "bytes=-"):
        assert ask(server, f"/clip/{key}.mp4", Range=ignored)[2] == clip
    status, headers, body = ask(server, f"/clip/{key}.mp4", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(len(clip)), b"")


@thorough
def test_a_clip_plays_in_the_browser(server: ReportServer, curated: Path, browser: Browser) -> None:
    for state in ("kept", "filtered"):
        key, _ = clip_of(curated, state)
        with browser.opened(f"{server.url}gallery.html#{key}") as page:
            page.wait_for_selector("dialog[open] video")
            page.evaluate(
                """async () => {
                    const video = document.querySelector("dialog video");
                    video.muted = true;
                    const moved = new Promise((resolve, reject) => {
                        video.addEventListener("timeupdate", () => video.currentTime > 0 && resolve());
                        video.addEventListener("error", () => reject(video.error.message));
                    });
                    await video.play();
                    await moved;
                }"""
            )
            size = page.eval_on_selector("dialog video", "(one) => [one.videoWidth, one.videoHeight]")
            assert size in ([320, 192], [192, 320], [160, 96])


def test_the_report_is_served_whole(server: ReportServer, browser: Browser) -> None:
    with browser.opened(server.url) as page:
        page.click("a[href='gallery.html']")
        page.wait_for_selector("body[data-ready]")
        page.wait_for_selector("#cards img")


def test_the_server_searches_whole_captions(tmp_path: Path, browser: Browser) -> None:
    samples = [make_sample(f"{number:04}", b"no video", 9, (80, 64)) for number in range(20)]
    for number, sample in enumerate(samples):
        sample.row["caption"] = f"{'word ' * 300}boat {number}"
    road, smiles = "\u039f\u0394\u039f\u03a3", "a" + "\U0001f600" * 250
    for number, caption in ((7, '<i>\u00c4pfel</i> "quoted"'), (8, f"{road} 8"), (9, smiles)):
        samples[number].row["caption"] = caption
    write(tmp_path, samples)
    asked = (("BOAT 1", 11), ("\u00e4pfel</I>", 1), ('"quoted"', 1), (road, 1), (smiles, 1), ("no such", 0))
    with served(open_dataset(tmp_path), StorageConfig()) as server:
        for words, count in asked:
            with browser.opened(f"{server.url}gallery.html#q={quote(words)}") as page:
                page.wait_for_selector(f"body[data-answered$=' {count}']")
                assert page.locator("#cards a.card").count() == count
                assert "cut after 1000 characters, here" in str(page.locator("#found").text_content())
        for wrong in ("zz", "f", "ff", "", "61" * 801):
            assert ask(server, f"/data/search-{wrong}.js")[0] == 404


def test_a_page_keeps_no_answers_of_searches(server: ReportServer, browser: Browser) -> None:
    with browser.opened(f"{server.url}gallery.html") as page:
        page.wait_for_selector("body[data-ready]")
        for words in ("one", "two", "one"):
            page.fill("[name=q]", words)
            page.wait_for_selector(f"body[data-answered^='q={words} ']")
        assert not [name for name in page.evaluate("[...data.files.keys()]") if name.startswith("search-")]
        assert page.locator("script[src*='search-']").count() == 0


def test_every_answer_has_a_strict_policy(server: ReportServer) -> None:
    for path, status in (("/", 200), ("/assets/gallery.js", 200), ("/nothing", 404)):
        answer = ask(server, path)
        assert answer[0] == status
        assert "default-src 'none'" in answer[1]["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in answer[1]["Content-Security-Policy"]
        assert answer[1]["X-Content-Type-Options"] == "nosniff"
        assert answer[1]["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize(
    "path",
    [
        "/../manifest.json",
        "/..%2fmanifest.json",
        "/assets/../../manifest.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/manifest.json",
        "/report/index.html",
        "/clip/../manifest.json",
        "/clip/..%2f..%2fmanifest.mp4",
        "/clip/%00.mp4",
        "/clip/unknown.mp4",
        "/clip/.mp4",
        "/data/",
    ],
)
def test_every_other_path_is_refused(server: ReportServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def test_other_hosts_and_methods_are_refused(server: ReportServer) -> None:
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1:1",
        "",
        f"localhost:{server.port}:1",
    ):
        assert ask(server, "/", Host=host)[0] == 421
    assert ask(server, "/", Host=f"localhost:{server.port}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"):
        assert ask(server, "/", method)[0] == 405


def test_every_path_needs_the_token(server: ReportServer, curated: Path) -> None:
    """On loopback, too: other users of this machine reach the port."""
    key, clip = clip_of(curated, "kept")
    for path in (
        "/",
        "/index.html",
        f"/{server.token[:-1]}/index.html",
        f"/clip/{key}.mp4",
        "/%00/index.html",
    ):
        assert ask_anyhow(server, path)[0] == 403
    assert ask_anyhow(server, f"/{server.token}/")[0] == 200
    assert ask_anyhow(server, f"/{server.token}/clip/{key}.mp4")[2] == clip
    assert server.url.endswith(f"/{server.token}/")
    assert len(server.token) > 30
    with ReportServer(server.pages, "127.0.0.1", 0) as other:
        assert other.token != server.token
    with ReportServer(server.pages, "127.0.0.1", 0, has_token=False) as other:
        assert other.url == f"http://127.0.0.1:{other.port}/"


def drip(server: ReportServer, count: int) -> list[socket.socket]:
    """Open connections that begin a request and do not end it."""
    dripping = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", server.port), 240)
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        dripping.append(connection)
    return dripping


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server has closed a connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_readers_are_answered_while_others_drip_headers(server: ReportServer) -> None:
    before, page = threading.active_count(), ask(server, "/")[2]
    with ExitStack() as stack:
        for _ in range(3):
            dripping = [stack.enter_context(connection) for connection in drip(server, 150)]
            assert ask(server, "/")[2] == page
        assert is_closed(dripping[0])
        assert any(time.sleep(0.05) or threading.active_count() - before <= 140 for _ in range(4800))
        # A reader who keeps the connection is a reader still.
        reader = http.client.HTTPConnection("127.0.0.1", server.port, timeout=240)
        stack.callback(reader.close)
        for _ in range(2):
            reader.request("GET", f"/{server.token}/")
            assert reader.getresponse().read() == page


def test_a_request_has_ten_seconds_in_all(server: ReportServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte comes: sixty seconds were those between two bytes."""
    monkeypatch.setattr("reelweave.pipelines.report.serve.server._HEADERS_S", 0.2)
    (connection,) = drip(server, 1)
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(2400):
            connection.sendall(b"x")
            time.sleep(0.05)
        raise AssertionError("the connection drips for two minutes")


@thorough
def test_without_descriptors_it_answers_still(curated: Path) -> None:
    words = [sys.executable, "-m", "reelweave.pipelines.cli", "report", str(curated), "--serve", "--json"]
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (96, 96))
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=limit) as started,
        ExitStack() as stack,
    ):
        stack.callback(started.kill)
        assert started.stdout is not None
        url = json.loads(f"{''.join(iter(started.stdout.readline, '}' + chr(10)))}}}")["url"]
        for _ in range(300):
            connection = socket.create_connection(("127.0.0.1", urlsplit(url).port), 240)
            stack.enter_context(connection).sendall(b"GET / HTTP/1.1\r\nX: ")
        with urlopen(f"{url}gallery.html", timeout=240) as answer:
            assert answer.status == 200


def test_a_port_that_is_taken_is_named(server: ReportServer) -> None:
    with pytest.raises(UsageError, match=f"port {server.port}"):
        ReportServer(server.pages, "127.0.0.1", server.port)


@thorough
def test_clips_are_read_from_a_bucket(curated: Path) -> None:
    with s3_server() as endpoint:
        make_bucket(endpoint, "served")
        config = StorageConfig(endpoint_url=endpoint)
        storage = open_storage("s3://served/set", config)
        for path in (path for path in curated.rglob("*") if path.is_file()):
            if path.relative_to(curated).parts[0] != "report":
                storage.write(str(path.relative_to(curated)), path.read_bytes())
        before = {item.path for item in storage.list("")}
        with served(Dataset(storage, config), config) as server:
            key, clip = clip_of(curated, "kept")
            assert ask(server, f"/clip/{key}.mp4", Range="bytes=100-199")[2] == clip[100:200]
            assert ask(server, "/gallery.html")[0] == 200
        assert {item.path for item in storage.list("")} == before  # nothing is written


@pytest.mark.parametrize("stops", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=thorough)])
def test_the_command_says_where_it_serves_and_ends_by_ctrl_c_in_words(
    curated: Path, stops: signal.Signals
) -> None:
    words = [sys.executable, "-m", "reelweave.pipelines.cli", "report", str(curated), "--serve", "--json"]
    # Where the tests run in the background of a shell, they and their children would ignore Ctrl-C.
    listens = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=listens
    ) as started:
        try:
            assert started.stdout is not None
            said = "".join(iter(started.stdout.readline, "}\n"))
            url = json.loads(f"{said}}}")["url"]
            assert url.startswith("http://127.0.0.1:")
            with urlopen(f"{url}gallery.html") as answer:
                assert answer.status == 200
            started.send_signal(stops)
            _, errors = started.communicate(timeout=240)
        finally:
            started.kill()
    assert started.returncode == 0
    assert errors == "the report is served no more\n"


def test_options_of_the_server_need_it(curated: Path) -> None:
    done = reelweave("report", curated, "--port", "0")
    assert done.returncode == 2
    assert "are of --serve" in done.stderr
