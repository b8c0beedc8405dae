"""Which faults are worth another try, and when."""

import random
import socket
import ssl

import pytest
from botocore import exceptions
from urllib3.exceptions import LocationParseError, NameResolutionError, ProtocolError, SSLError

from reelweave.loader.storage import StorageConfig
from reelweave.loader.storage.remote.retry import StatusError, delays, is_transient, retry

QUICK = StorageConfig(max_attempts=4, backoff_base_s=0)


def answered(status, code=""):
    return exceptions.ClientError(
        {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject"
    )


def unresolved(code):
    reason = socket.gaierror(code, "words")
    error = NameResolutionError("host", None, reason)
    error.__cause__ = reason
    return error


@pytest.mark.parametrize(
    "error",
    [
        *(StatusError(status) for status in (408, 425, 429, 500, 502, 503, 504)),
        unresolved(socket.EAI_AGAIN),
        SSLError("broken off"),
        answered(500, "InternalError"),
        answered(503, "SlowDown"),
        answered(502),
        answered(504),
        answered(429),
        answered(200, "SlowDown"),
        answered(400, "RequestTimeout"),
        answered(409, "ConditionalRequestConflict"),
        exceptions.EndpointConnectionError(endpoint_url="http://host"),
        exceptions.ConnectTimeoutError(endpoint_url="http://host"),
        exceptions.ReadTimeoutError(endpoint_url="http://host"),
        exceptions.ConnectionClosedError(endpoint_url="http://host"),
        exceptions.ResponseStreamingError(error="broken"),
        exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        ProtocolError("broken"),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
def test_faults_of_the_moment_are_transient(error):
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        *(StatusError(status) for status in (400, 401, 403, 405, 501)),
        unresolved(socket.EAI_NONAME),
        SSLError(ssl.SSLCertVerificationError()),
        LocationParseError("x"),
        answered(400, "InvalidRequest"),
        answered(403, "AccessDenied"),
        answered(404, "NoSuchKey"),
        answered(409, "BucketNotEmpty"),
        answered(412, "PreconditionFailed"),
        answered(416, "InvalidRange"),
        answered(501, "NotImplemented"),
        exceptions.NoCredentialsError(),
        exceptions.ParamValidationError(report="bad"),
        FileNotFoundError(),
        ValueError(),
        KeyboardInterrupt(),
    ],
)
def test_faults_that_stay_are_not_transient(error):
    assert not is_transient(error)


def test_delays_lie_under_a_doubling_bound_and_the_cap():
    config = StorageConfig(max_attempts=9, backoff_base_s=0.5, backoff_cap_s=6)
    bounds = [0.5, 1, 2, 4, 6, 6, 6, 6]
    tries = [list(delays(config, random.Random(seed))) for seed in range(300)]
    for column, bound in zip(zip(*tries, strict=True), bounds, strict=True):
        assert 0 <= min(column) < 0.1 * bound
        assert 0.9 * bound < max(column) <= bound


def test_one_attempt_means_no_delay():
    assert list(delays(StorageConfig(max_attempts=1), random.Random(0))) == []


def test_a_fault_that_lasts_is_raised_after_the_last_attempt():
    calls = []

    def fail():
        calls.append(1)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        retry(fail, QUICK, "s3://bucket/a")
    assert len(calls) == 4


def test_a_fault_that_stays_is_raised_at_once():
    calls = []

    def fail():
        calls.append(1)
        raise answered(403)

    with pytest.raises(exceptions.ClientError):
        retry(fail, QUICK, "s3://bucket/a")
    assert len(calls) == 1


def test_progress_starts_the_count_again():
    calls = []

    def fail():
        calls.append(1)
        if len(calls) == 20:
            return "done"
        raise ConnectionResetError

    assert retry(fail, QUICK, "s3://bucket/a", progress=lambda: len(calls) // 3) == "done"
