"""The web as a storage: good servers, poor ones and bad ones, all real."""

import os
import pickle
import time
from pathlib import Path

import pytest

from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import StorageConfig, WebError, open_object, open_storage, public_url
from tests.httpserver import web_server
from tests.ports import reserved_port

MIB = 1 << 20
BODY = os.urandom(3 * MIB + 12345)
CONFIG = StorageConfig(max_attempts=4, backoff_base_s=0.001, block_mib=1, read_timeout_s=5)


@pytest.fixture
def server():
    with web_server() as server:
        server.files["/deep/a b.mp4"] = BODY
        yield server


@pytest.fixture
def url(server):
    return f"{server.url}/deep/a%20b.mp4"


def opened(url, config=CONFIG):
    storage, name = open_object(url, config)
    return storage.open(name)


def read(url, *ask, config=CONFIG):
    storage, name = open_object(url, config)
    return storage.read(name, *ask)


def test_an_object_of_the_web_is_read_whole_and_in_ranges(url):
    assert read(url) == BODY
    assert read(url, 5, 7) == BODY[5:12]
    assert read(url, len(BODY) - 3) == BODY[-3:]
    assert read(url, 9, 0) == b""
    assert read(url, len(BODY), 5) == read(url, len(BODY) + 9) == b""


def test_a_folder_of_the_web_is_a_storage_too(server):
    storage = open_storage(f"{server.url}/deep/", CONFIG)
    assert storage.read("a b.mp4", 0, 4) == storage.read("a%20b.mp4", 0, 4) == BODY[:4]
    assert storage.uri("a b.mp4") == f"{server.url}/deep/a%20b.mp4"


def test_stat_tells_size_and_version_and_reads_one_byte(server, url):
    storage, name = open_object(url, CONFIG)
    before = storage.stat(name)
    assert before.size == len(BODY)
    assert server.bytes_sent() == 1
    server.files["/deep/a b.mp4"] = BODY[:-1] + b"x"
    assert storage.stat(name).version != before.version
    assert storage.stat("other") is None


def test_an_empty_object_reads_as_empty(server):
    server.files["/empty"] = b""
    assert read(f"{server.url}/empty") == opened(f"{server.url}/empty").read() == b""


def test_an_open_object_fetches_each_block_once_however_often_it_is_read(server, url):
    with opened(url) as file:
        assert file.read() == BODY
        file.seek(2 * MIB - 5)
        assert file.read(10) == BODY[2 * MIB - 5 : 2 * MIB + 5]
        for _ in range(3):
            file.seek(0)
            assert file.read() == BODY
    assert server.bytes_sent() == len(BODY) + 1


@pytest.mark.parametrize("config", [CONFIG, CONFIG.model_copy(update={"block_mib": 8})])
def test_without_ranges_the_object_is_spooled_and_fetched_once(server, url, config):
    server.ranges = False
    with opened(url, config) as file:
        file.seek(MIB)
        assert file.read(9) == BODY[MIB : MIB + 9]
        file.seek(0)
        assert file.read() == BODY
    assert [request.status for request in server.requests] == [200, 200]
    assert read(url, MIB, 9) == BODY[MIB : MIB + 9]


def test_a_body_of_unknown_length_is_spooled(server, url):
    server.ranges = server.lengths = False
    assert opened(url).read() == BODY
    storage, name = open_object(url, CONFIG)
    assert storage.stat(name).size == 0


@pytest.mark.parametrize("lengths", [True, False])
@pytest.mark.parametrize("cache_mib", [0, 2])
def test_a_spooled_object_is_bounded(server, url, lengths, cache_mib):
    server.ranges, server.lengths = False, lengths
    with pytest.raises(WebError, match=r"no byte ranges.*storage.cache_mib"):
        opened(url, CONFIG.model_copy(update={"cache_mib": cache_mib}))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_body_that_breaks_is_continued_where_it_broke(server, url, ranges):
    server.ranges = ranges
    server.cut_after = [2, 100_000, MIB // 2, MIB, 2 * MIB]
    assert read(url) == BODY
    if ranges:
        assert server.bytes_sent() == len(BODY)


def test_a_break_without_progress_ends_after_some_tries(server, url):
    server.cut_after = [0] * 99
    with pytest.raises(WebError, match=r"gave up after 4 tries"):
        read(url)
    assert len(server.requests) == 4


@pytest.mark.parametrize("etags", [True, False])
def test_an_object_that_changes_between_blocks_is_told(server, url, etags):
    server.etags = etags
    with opened(url) as file:
        file.read(10)
        server.files["/deep/a b.mp4"] = BODY[::-1] if etags else BODY + b"longer"
        file.seek(2 * MIB)
        with pytest.raises(WebError, match="changed while it was read"):
            file.read(10)


def test_an_object_that_changes_while_a_body_breaks_is_told(server, url):
    def change(handler):
        if len(server.requests) == 2:
            server.files["/deep/a b.mp4"] = BODY[::-1]
        return False

    server.cut_after, server.script = [MIB], change
    with pytest.raises(WebError, match="changed while it was read"):
        read(url)


def test_an_object_that_disappears_while_it_is_open_is_told(server, url):
    with opened(url) as file:
        file.read(10)
        server.files.clear()
        file.seek(2 * MIB)
        with pytest.raises(WebError, match="disappeared while it was read"):
            file.read(10)


def test_a_wrong_range_is_refused(server, url):
    def lie(handler):
        handler.answer(206, b"abc", {"Content-Range": f"bytes 0-2/{len(BODY)}"})
        return True

    server.script = lie
    with pytest.raises(WebError, match="another byte range"):
        read(url, 7, 3)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_passing_refusals_are_tried_again(server, url, status):
    def refuse(handler):
        if len(server.requests) <= 2:
            handler.answer(status, b"later", {"Retry-After": "0"})
        return len(server.requests) <= 2

    server.script = refuse
    assert read(url) == BODY


def test_the_pause_a_server_asks_for_is_kept_up_to_the_cap(server, url):
    def refuse(handler):
        if len(server.requests) == 1:
            handler.answer(503, b"", {"Retry-After": "3600"})
        return len(server.requests) == 1

    server.script = refuse
    began = time.monotonic()
    read(url, config=CONFIG.model_copy(update={"backoff_cap_s": 0.2}))
    assert 0.2 <= time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("status", "words"), [(403, "access was denied"), (401, "access was denied"), (400, "for good.*400")]
)
def test_lasting_refusals_are_told_at_once(server, url, status, words):
    def refuse(handler):
        handler.answer(status, b"<secret>page</secret>")
        return True

    server.script = refuse
    for use in (lambda: read(url), lambda: opened(url)):
        with pytest.raises(WebError, match=words) as caught:
            use()
        assert "<secret>" not in str(caught.value)
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [404, 410])
def test_what_is_gone_does_not_exist(server, url, status):
    def gone(handler):
        handler.answer(status, b"")
        return True

    server.script = gone
    storage, name = open_object(url, CONFIG)
    assert storage.stat(name) is None
    for use in (storage.read, storage.open):
        with pytest.raises(FileNotFoundError, match=r"a%20b\.mp4 does not exist"):
            use(name)


def test_a_compressed_answer_is_refused(server, url):
    def pack(handler):
        handler.answer(200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
        return True

    server.script = pack
    with pytest.raises(WebError, match="compresses"):
        read(url)
    assert server.requests[0].headers["Accept-Encoding"] == "identity"


def redirect(server, target, path="/deep/a%20b.mp4"):
    def script(handler):
        if handler.path.startswith(path):
            handler.answer(302, b"", {"Location": target})
            return True
        return False

    server.script = script


def test_redirects_are_followed_and_remembered_while_an_object_is_open(server, url):
    server.files["/store/1"] = BODY
    redirect(server, "/store/1?signature=x")
    with opened(url) as file:
        assert file.read() == BODY
    assert sum(request.status == 302 for request in server.requests) == 1


def test_a_redirect_that_ran_out_is_asked_for_anew(server, url):
    server.files["/store/1"] = server.files["/store/2"] = BODY
    redirect(server, "/store/1")
    with opened(url) as file:
        file.read(10)
        del server.files["/store/1"]
        redirect(server, "/store/2")
        assert file.read() == BODY[10:]


@pytest.mark.parametrize(
    "target",
    ["file:///etc/passwd", "ftp://127.0.0.1/x", "s3://bucket/x", "http://a b/", "http://h:x/"],
)
def test_redirects_lead_to_web_addresses_only(server, url, target):
    redirect(server, target)
    with pytest.raises(WebError, match="no web address"):
        read(url)


def test_redirects_are_bounded(server, url):
    redirect(server, "/deep/a%20b.mp4?again")
    with pytest.raises(WebError, match=r"more than storage\.max_redirects = 5"):
        read(url)
    assert len(server.requests) == 6


def test_user_and_password_go_to_their_server_only_and_are_never_shown(server, url):
    secret = url.replace("http://", "http://me:hidden-word@")
    with web_server() as other:
        other.files["/b"] = BODY
        redirect(server, f"{other.url}/b")
        config = CONFIG.model_copy(update={"allow_private": True})
        storage, name = open_object(secret + "?token=hidden-word#part", config)
        assert storage.read(name) == BODY
        assert server.requests[0].headers["Authorization"].startswith("Basic ")
        assert server.requests[0].line.endswith("?token=hidden-word")
        assert "Authorization" not in other.requests[0].headers
        del other.files["/b"]
        with pytest.raises(FileNotFoundError) as caught:
            storage.read(name)
    assert "hidden-word" not in f"{caught.value}{storage.uri(name)}{storage.root}{storage!r}"
    assert storage.uri(name) == url


def test_the_proxy_of_the_environment_is_used(server, monkeypatch):
    server.files["http://nowhere.invalid/a"] = BODY
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "elsewhere.invalid")
    assert read("http://nowhere.invalid/a", 5, 7) == BODY[5:12]


def test_a_server_that_is_not_there_is_told():
    with (
        reserved_port() as port,
        pytest.raises(WebError, match=rf"127\.0\.0\.1:{port}/a\.mp4: gave up.*NewConnectionError"),
    ):
        read(f"http://127.0.0.1:{port}/a.mp4")


def test_a_server_that_drips_counts_as_silent(server, url):
    def drip(handler):
        handler.drip(1000, 0.02)
        return True

    server.script = drip
    config = CONFIG.model_copy(update={"max_attempts": 1, "read_timeout_s": 0.1, "min_rate_kib_s": 64.0})
    with pytest.raises(WebError, match="ReadTimeoutError"):  # before the body ends, after 20 s
        read(url, config=config)


@pytest.mark.parametrize(
    "use",
    [
        lambda storage: storage.write("a", b""),
        lambda storage: storage.write_file("a", Path(__file__)),
        lambda storage: storage.create("a", b""),
        lambda storage: storage.replace("a", b"", "1"),
        lambda storage: storage.delete("a"),
        lambda storage: storage.delete_tree("a"),
        lambda storage: storage.sweep(),
    ],
)
def test_the_web_is_not_written_to(server, use):
    with pytest.raises(UsageError, match="can only be read"):
        use(open_storage(server.url, CONFIG))
    assert server.requests == []


def test_the_web_lists_nothing(server):
    with pytest.raises(UsageError, match="give a list of addresses"):
        list(open_storage(server.url, CONFIG).list())


@pytest.mark.parametrize(
    "url", ["http://", "https:///a.mp4", "http://host:port/a.mp4", "http://u:hid/den@h/a"]
)
def test_what_is_no_web_address_is_refused_without_repeating_secrets(url):
    with pytest.raises(UsageError) as caught:
        open_object(url, CONFIG)
    assert "hid" not in str(caught.value)


def test_a_server_has_no_object_without_a_name(server):
    with pytest.raises(UsageError, match="names no object"):
        open_object(f"{server.url}/", CONFIG)


def test_a_storage_of_the_web_can_be_sent_to_workers(server, url):
    storage, name = open_object(url, CONFIG)
    assert pickle.loads(pickle.dumps(storage)).read(name, 0, 5) == BODY[:5]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:pw@host:8443/a/b.mp4#t=3", "https://host:8443/a/b.mp4"),
        ("https://host/watch?v=abc&list=2", "https://host/watch?v=abc&list=2"),
        ("https://host/a?X-Amz-Signature=1&X-Amz-Expires=3&versionId=7", "https://host/a?versionId=7"),
        ("https://host/a?sv=2024&se=9&sp=r&sig=x&id=1", "https://host/a?id=1"),
        ("https://host/a?token=x&API_KEY=y", "https://host/a?token=sha256-313ee879af976de3"),
        ("https://host/@user/a.mp4", "https://host/@user/a.mp4"),
    ],
)
def test_a_public_address_holds_nothing_that_lets_one_in(url, shown):
    assert public_url(url) == shown


def test_web_errors_are_failures_of_the_run_for_whoever_does_not_know_better():
    assert issubclass(WebError, RunError)
