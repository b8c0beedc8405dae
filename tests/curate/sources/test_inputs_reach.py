"""Lists of strangers: what their entries may lead to, by real servers and without a packet elsewhere."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reelweave.curate.sources.inputs import SourceRef, list_sources
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, WebError, open_object
from tests.bench import hostile_web
from tests.httpserver import WebServer, web_server
from tests.network import pretend
from tests.s3server import make_bucket, s3_client, s3_server

CONFIG = StorageConfig(max_attempts=2, backoff_base_s=0.001)


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/a.mp4"] = b"video"
        yield server


def found(web: WebServer, *entries: str, config: StorageConfig = CONFIG) -> list[SourceRef]:
    web.files["/l.jsonl"] = "".join(json.dumps({"path": entry}) + "\n" for entry in entries).encode()
    return list_sources([f"{web.url}/l.jsonl"], config)


@pytest.mark.parametrize(
    "spelling",
    [
        *(
            "file:{}",
            "file://{}",
            "FILE:{}",
            "file://localhost{}",
            "{}",
            "\\{}",
            "file:\\{}",
            "//localhost{}",
            " {}",
        ),
        *(
            "../../../../../..{}",
            "..\\..\\..{}",
            "%2e%2e/%2e%2e{}",
            "file:%2f{}",
            "file:///{}",
            "s3:/{}",
            "x:{}",
        ),
    ],
)
def test_no_spelling_of_a_file_of_this_machine_is_read(web: WebServer, tmp_path: Path, spelling: str) -> None:
    (tmp_path / "private.mp4").write_bytes(b"private")
    (source,) = found(web, spelling.format(f"{tmp_path}/private.mp4"))
    assert source.fault
    assert source.size == 0
    # Neither when it is opened later, as workers do.
    with pytest.raises((UsageError, WebError, FileNotFoundError)):
        storage, name = open_object(source.location, CONFIG, source.listed_in)
        storage.open(name)


def test_whether_a_folder_of_this_machine_exists_is_not_told(web: WebServer, tmp_path: Path) -> None:
    there, nowhere = f"{tmp_path}/", f"{tmp_path}/nowhere/"
    for spelling in ("file:{}", "file://{}", "FILE:{}", "s3:/{}"):
        faults = {source.fault for source in found(web, spelling.format(there), spelling.format(nowhere))}
        assert len({str(fault).replace(nowhere, there) for fault in faults}) == 1


def test_a_list_from_the_web_names_its_own_host_and_what_a_prefix_allows(web: WebServer) -> None:
    with web_server() as other:
        other.files["/b.mp4"] = b"other"
        entries = ("a.mp4", f"{other.url}/b.mp4".replace("127.0.0.1", "localhost"), "s3://bucket/c.mp4")
        sources = {source.uri[-5:]: source for source in found(web, *entries)}
        assert sources["a.mp4"].fault is None
        assert "storage.allowed_prefixes" in str(sources["b.mp4"].fault)
        assert "storage.allowed_prefixes" in str(sources["c.mp4"].fault)
        assert other.requests == []
        config = CONFIG.model_copy(
            update={"allowed_prefixes": (other.url.replace("127.0.0.1", "localhost"),)}
        )
        sources = {source.uri[-5:]: source for source in found(web, *entries, config=config)}
        assert sources["b.mp4"].fault is None


def test_another_port_of_a_private_host_is_another_server(web: WebServer) -> None:
    with web_server() as other:
        other.files["/b.mp4"] = b"other"
        (source,) = found(web, f"{other.url}/b.mp4")
        assert "storage.allow_private" in str(source.fault)
        assert other.requests == []


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "localhost",
            "127.1",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ),
        *("0.0.0.0", "169.254.169.254", "[fd00:ec2::254]", "10.0.0.7", "metadata.example", "both.example"),
    ],
)
def test_a_list_on_this_machine_reaches_public_addresses_alone(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    network = pretend(
        monkeypatch, {"metadata.example": "169.254.169.254", "both.example": ["10.0.0.7", "::1"]}
    )
    (tmp_path / "l.txt").write_text(f"http://{host}:{web.url.rpartition(':')[2]}/a.mp4\n")
    (source,) = list_sources([str(tmp_path / "l.txt")], CONFIG)
    assert "no public address" in str(source.fault)
    assert network.connected == []


def test_a_public_host_of_a_list_is_read(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = pretend(monkeypatch, {"films.example": ["10.0.0.7", "1.2.3.4"]}, {"1.2.3.4": web.url})
    (tmp_path / "l.txt").write_text("http://films.example/a.mp4\n")
    (source,) = list_sources([str(tmp_path / "l.txt")], CONFIG)
    assert source.fault is None
    assert network.connected == ["1.2.3.4"]  # of several addresses the public ones


def test_a_name_that_changes_its_address_is_judged_at_every_connection(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files |= {"/l.txt": b"a.mp4\n", "/a.mp4": b"x" * 4096}
    web.closing = True  # every request is a connection
    public, private = ["1.2.3.4"], ["127.0.0.1"]
    network = pretend(monkeypatch, {"evil.example": [public, public, public, private]}, {"1.2.3.4": web.url})
    url = f"http://evil.example:{web.url.rpartition(':')[2]}"
    (source,) = list_sources([f"{url}/l.txt"], CONFIG)
    assert "at 127.0.0.1, which is no public address" in str(source.fault)
    assert network.connected == ["1.2.3.4"] * len(network.connected)
    # A connection goes to what its own look-up gave, and only the last look-up gave none.
    assert network.looked_up.count("evil.example") == len(network.connected) + 1


def test_redirects_of_listed_media_are_judged_as_names_of_the_list(web: WebServer) -> None:
    with web_server() as inner:
        inner.files["/b.mp4"] = b"inner"
        moved: dict[str, str] = {}

        def redirect(handler) -> bool:
            if handler.path in moved:
                handler.answer(302, b"", {"Location": moved[handler.path]})
                return True
            return False

        web.script = redirect
        moved["/same.mp4"] = "/a.mp4"
        moved["/other.mp4"] = f"{inner.url}/b.mp4"
        moved["/named.mp4"] = "http://elsewhere.example/b.mp4"
        moved["/twice.mp4"] = "/other.mp4"
        faults = {source.uri[-9:]: source.fault for source in found(web, *(path[1:] for path in moved))}
        assert faults["/same.mp4"] is None
        assert "storage.allow_private" in str(faults["other.mp4"])
        assert "storage.allowed_prefixes" in str(faults["named.mp4"])
        assert "storage.allow_private" in str(faults["twice.mp4"])
        assert inner.requests == []


def test_a_redirect_that_comes_only_with_the_ranges_is_judged_too(web: WebServer) -> None:
    with web_server() as inner:
        inner.files["/a.mp4"] = b"inner"
        (source,) = found(web, "a.mp4")
        storage, name = open_object(source.location, CONFIG, source.listed_in)
        file = storage.open(name)

        def redirect(handler) -> bool:
            handler.answer(302, b"", {"Location": f"{inner.url}/a.mp4"})
            return True

        web.script = redirect
        with pytest.raises(WebError, match="no public address"):
            file.read()
        assert inner.requests == []


def test_what_a_person_types_may_be_private_and_what_it_redirects_to_may_not(web: WebServer) -> None:
    with web_server() as inner:
        inner.files["/b.mp4"] = b"inner"

        def redirect(handler) -> bool:
            if handler.path == "/moved.mp4":
                handler.answer(302, b"", {"Location": f"{inner.url}/b.mp4"})
                return True
            return False

        web.script = redirect
        assert list_sources([f"{web.url}/a.mp4"], CONFIG)[0].fault is None
        with pytest.raises(WebError, match=r"no public address.*storage\.allow_private"):
            list_sources([f"{web.url}/moved.mp4"], CONFIG)
        assert inner.requests == []
        config = CONFIG.model_copy(update={"allow_private": True})
        assert list_sources([f"{web.url}/moved.mp4"], config)[0].size == 5


def test_a_proxy_is_not_asked_for_addresses_that_are_not_public(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["http://films.example/a.mp4"] = b"by proxy"
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    (tmp_path / "l.txt").write_text("http://films.example/a.mp4\nhttp://169.254.169.254/a.mp4\n")
    sources = {source.uri: source.fault for source in list_sources([str(tmp_path / "l.txt")], CONFIG)}
    assert sources["http://films.example/a.mp4"] is None
    assert "no public address" in str(sources["http://169.254.169.254/a.mp4"])
    assert [request.line for request in web.requests] == ["GET http://films.example/a.mp4"]


def test_a_list_in_a_bucket_names_objects_of_that_bucket(tmp_path: Path) -> None:
    (tmp_path / "private.mp4").write_bytes(b"private")
    with s3_server() as endpoint:
        make_bucket(endpoint, "films")
        make_bucket(endpoint, "private")
        config = CONFIG.model_copy(update={"endpoint_url": endpoint})
        entries = ("a.mp4", "s3://films/a.mp4", "s3://private/p.mp4", f"{tmp_path}/private.mp4", "../x.mp4")
        for bucket, key, body in (
            ("films", "in/a.mp4", b"a"),
            ("films", "a.mp4", b"b"),
            ("private", "p.mp4", b"p"),
            ("films", "in/l.txt", "\n".join(entries).encode()),
        ):
            s3_client(endpoint).put_object(Bucket=bucket, Key=key, Body=body)
        sources = {source.uri: source.fault for source in list_sources(["s3://films/in/l.txt"], config)}
        assert [uri for uri, fault in sources.items() if fault is None] == [
            "s3://films/a.mp4",
            "s3://films/in/a.mp4",
        ]
        assert "storage.allowed_prefixes" in str(sources["s3://private/p.mp4"])
        config = config.model_copy(update={"allowed_prefixes": ("s3://private/",)})
        sources = {source.uri: source.fault for source in list_sources(["s3://films/in/l.txt"], config)}
        assert sources["s3://private/p.mp4"] is None


MALFORMED = [
    *(
        "http://[::1",
        "http://[::1]x/a.mp4",
        "http://[/x",
        "http://",
        "http:///x.mp4",
        "http://h:99999/x",
        "http://h:x/a",
    ),
    *(
        "http://u:p]secret@[/x",
        "http://u:secret@h\\@evil/x",
        "http://a\tb/x",
        "http://%zz/x",
        "http://h%00/x.mp4",
    ),
    *(
        "http://[::1%25lo]/x",
        "http://..",
        "http://" + "a" * 300 + "/x",
        "http://a..b/x",
        "//[",
        "http://[v1.x]/a",
    ),
]


@pytest.mark.parametrize("entry", MALFORMED)
def test_a_malformed_address_is_a_fault_of_that_entry(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    pretend(monkeypatch)
    sources = found(web, entry, "a.mp4")
    (tmp_path / "l.jsonl").write_text(json.dumps({"path": entry}) + "\n")
    sources += list_sources([str(tmp_path / "l.jsonl")], CONFIG)
    assert [bool(source.fault) for source in sources].count(True) == 2
    assert "secret" not in repr(sources)


@pytest.mark.parametrize("location", [*MALFORMED, "http://[::1", "\xff\xfe", "//", "?", "http:a"])
def test_a_redirect_to_a_malformed_address_is_a_fault_of_that_entry(
    web: WebServer, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    pretend(monkeypatch)

    def redirect(handler) -> bool:
        if handler.path == "/moved.mp4":
            handler.answer(302, b"", {"Location": location.encode("latin-1", "replace").decode("latin-1")})
            return True
        return False

    web.script = redirect
    faults = [source.fault for source in found(web, "moved.mp4", "a.mp4")]
    assert faults[0] is None
    assert faults[1]
    assert "secret" not in str(faults[1])


def test_a_server_that_drips_headers_does_not_hold_up_a_list(web: WebServer, tmp_path: Path) -> None:
    """Each of a thousand entries would take 20 s; those after the first few are not asked for."""

    def drip(handler) -> bool:
        if handler.path.startswith("/slow"):
            handler.trickle(b"HTTP/1.1 200 OK\r\nX: ", [b"x"] * 1000, 0.02)
            return True
        return False

    web.script = drip
    with web_server() as slow:
        slow.script = drip
        entries = [f"{slow.url}/slow{number}.mp4" for number in range(1000)]
        (tmp_path / "l.txt").write_text("\n".join([*entries, f"{web.url}/a.mp4"]))
        config = CONFIG.model_copy(update={"allow_private": True, "max_attempts": 1, "read_timeout_s": 0.1})
        sources = list_sources([str(tmp_path / "l.txt")], config)
        assert [source.uri for source in sources if not source.fault] == [f"{web.url}/a.mp4"]
        assert len(slow.requests) < 100


def test_addresses_from_a_seed_are_survived() -> None:
    """Some of the thousands of `tests.bench.hostile_web`."""
    lost: list[str] = []
    ended = hostile_web.run(seed=7, count=60, note=lost.append)
    assert lost == []
    assert {kind: counts.total() for kind, counts in ended.items()} == dict.fromkeys(
        ("web list", "local list", "redirect"), 60
    )
