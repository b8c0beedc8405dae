"""Servers that are slow on purpose, of the web and of S3: every request ends, and honest slowness is borne."""

import pytest

from reelweave.loader.errors import RunError
from reelweave.loader.storage import SilentError, StorageConfig, WebError, open_object, open_storage
from reelweave.loader.storage.remote.timeouts import RequestClock, RequestLimits
from tests.httpserver import web_server

PIECES = 1000  # some 20 s, after which each answer below is whole and right
PAUSE_S = 0.02
CONFIG = StorageConfig(
    max_attempts=1, read_timeout_s=0.2, connect_timeout_s=5, min_rate_kib_s=4, region="us-east-1"
)
HEADERS = b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "x"\r\n'


def dripped(data: bytes) -> list[bytes]:
    return [bytes([one]) for one in data]


DRIPS = {
    "a status line": (b"", dripped(b"HTTP/1.1 200 " + b"O" * PIECES + b"\r\n\r\nvideo")),
    "a header": (HEADERS + b"X-Long: ", dripped(b"x" * PIECES + b"\r\n\r\nvideo")),
    "headers": (HEADERS, [b"X-%d: x\r\n" % number for number in range(90)] + dripped(b"\r\nvideo")),
    "interim answers": (b"", [b"HTTP/1.1 100 Continue\r\n\r\n"] * PIECES + [HEADERS + b"\r\nvideo"]),
    "a body": (b"HTTP/1.1 200 OK\r\nETag: x\r\nContent-Length: %d\r\n\r\n" % PIECES, [b"x"] * PIECES),
    "the size of a chunk": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        dripped(b"5;" + b"x" * PIECES + b"\r\nvideo\r\n0\r\n\r\n"),
    ),
    "trailers": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvideo\r\n0\r\n",
        [b"X-%d: x\r\n" % number for number in range(PIECES)] + [b"\r\n"],
    ),
}


@pytest.fixture
def server(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with web_server() as server:
        yield server


def answering(server, at_once, pieces, pause_s=PAUSE_S):
    def script(handler):
        handler.trickle(at_once, pieces, pause_s)
        return True

    server.script = script


@pytest.mark.parametrize("drip", DRIPS)
def test_no_part_of_an_answer_of_the_web_may_drip(server, drip):
    answering(server, *DRIPS[drip])
    storage, name = open_object(f"{server.url}/a.mp4", CONFIG)
    with pytest.raises(SilentError, match="ReadTimeoutError"):
        storage.read(name)


@pytest.mark.parametrize("drip", DRIPS)
def test_no_part_of_an_answer_of_s3_may_drip(server, drip):
    answering(server, *DRIPS[drip])
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match=r"gave up after 1 tries.*ReadTimeoutError|no ContentLength"):
        storage.read("a.mp4")


def test_a_page_of_a_listing_may_not_drip(server):
    at_once = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % PIECES
    answering(server, at_once, dripped(b"<ListBucketResult>".ljust(PIECES)))
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match="ReadTimeoutError"):
        list(storage.list())


@pytest.mark.parametrize(
    ("at_once", "pieces"),
    [
        (b"", dripped(b"HTTP/1.1 100 " + b"C" * PIECES)),
        (b"HTTP/1.1 100 Continue\r\n", dripped(b"X: " + b"x" * PIECES)),
        (b"HTTP/1.1 100 Continue\r\n", []),  # hangs up, after which there are empty lines without end
    ],
)
def test_leave_to_send_a_part_may_not_drip(server, at_once, pieces):
    answering(server, at_once, pieces)
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match="gave up after 1 tries"):
        storage.write("a.mp4", bytes(2 << 20))


def test_an_object_that_is_not_taken_off_the_wire_is_given_up(server):
    answering(server, b"HTTP/1.1 100 Continue\r\n\r\n", [b""] * 250)
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match="gave up after 1 tries"):
        storage.write("a.mp4", bytes(16 << 20))


@pytest.mark.parametrize("attempts", [1, 1000])
def test_a_request_has_a_total_deadline_however_much_comes(server, attempts):
    """Each try brings something, so the count of tries alone would let it go on for ever."""
    pieces = [b"x" * 8192] * (PIECES if attempts == 1 else 5)
    answering(server, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8192 * PIECES), pieces)
    config = CONFIG.model_copy(
        update={
            "request_timeout_s": 0.5,
            "max_attempts": attempts,
            "backoff_base_s": 0.001,
            "min_rate_kib_s": 0.0,
        }
    )
    storage, name = open_object(f"{server.url}/a.mp4", config)
    with pytest.raises(WebError, match=r"or 0\.5 s \(storage\.request_timeout_s\)"):
        storage.read(name)


def test_headers_are_bounded(server):
    answering(server, HEADERS, [b"X: " + b"x" * 60_000 + b"\r\n"] * 99 + [b"\r\nvideo"], pause_s=0.0)
    storage, name = open_object(f"{server.url}/a.mp4", CONFIG)
    with pytest.raises(WebError, match="gave up"):
        storage.read(name)


def test_a_page_of_a_listing_is_bounded(server):
    size = 70 << 20
    answering(server, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size, [bytes(1 << 20)] * 70, 0.0)
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match="gave up after 1 tries"):
        list(storage.list())


def test_a_listing_that_never_ends_is_told(server):
    page = b"<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    page = b"<ListBucketResult>" + page + b"</ListBucketResult>"
    # The server hangs up behind each page. A client that does not know may ask for the next on that connection.
    head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(page)
    answering(server, head, [page], pause_s=0.0)
    storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
    with pytest.raises(RunError, match="same page again"):
        list(storage.list())


def test_a_slow_and_honest_server_is_borne(server):
    """Headers after a while, then a body above the least rate, longer than any single timeout."""
    body = [b"x" * 4096] * 25
    answering(server, HEADERS.replace(b"5", b"102400") + b"\r\n", body, pause_s=0.1)
    config = CONFIG.model_copy(update={"read_timeout_s": 1.5, "min_rate_kib_s": 1.0})
    storage, name = open_object(f"{server.url}/a.mp4", config)
    assert storage.read(name) == b"".join(body)


LIMITS = RequestLimits(window_s=10, window_bytes=100, whole_s=60)


def test_waiting_without_enough_bytes_ends_with_the_window():
    clock = RequestClock(LIMITS)
    clock.record_wait(4, 99)
    assert clock.left_s() == 6
    clock.record_wait(6, 0)
    with pytest.raises(TimeoutError):
        clock.left_s()


def test_enough_bytes_begin_a_new_window_until_all_time_is_over():
    clock = RequestClock(LIMITS)
    for _ in range(6):
        clock.record_wait(9, 100)
    assert clock.left_s() == 6
    clock.phase()
    clock.record_wait(6, 100)
    with pytest.raises(TimeoutError):
        clock.left_s()


def test_a_phase_has_its_own_window_and_its_own_bytes():
    clock = RequestClock(LIMITS)
    clock.record_wait(9, 1)
    clock.phase(most_bytes=10)
    assert clock.left_s() == 10
    clock.record_wait(0, 10)
    with pytest.raises(ConnectionError):
        clock.record_wait(0, 1)


def test_an_endpoint_leads_to_no_other_host(server):
    """A redirect of S3 may name another region, never another server: requests are signed with one's credentials."""
    with web_server() as other:

        def redirect(handler):
            handler.answer(
                307, b"", {"Location": f"{other.url}/bucket/films/a.mp4", "x-amz-bucket-region": "eu-west-1"}
            )
            return True

        server.script = redirect
        storage = open_storage("s3://bucket/films", CONFIG.model_copy(update={"endpoint_url": server.url}))
        with pytest.raises(RunError):
            storage.read("a.mp4")
        assert other.requests == []
