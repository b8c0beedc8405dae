"""S3 on its bad days: every fault is produced by a real proxy in front of a real server."""

import logging
import os
import socket

import boto3
import pytest
from boto3.s3.transfer import TransferConfig

from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, open_storage
from tests.ports import reserved_port
from tests.s3server import FaultyProxy, make_bucket, put_directly, s3_client, s3_server

MIB = 1 << 20
BODY = os.urandom(3 * MIB)


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as url:
        make_bucket(url, "bucket")
        yield url


@pytest.fixture
def proxy(endpoint):
    with FaultyProxy(endpoint) as proxy:
        yield proxy


@pytest.fixture
def config(proxy):
    return StorageConfig(
        endpoint_url=proxy.url,
        max_attempts=4,
        backoff_base_s=0.001,
        part_mib=5,
        block_mib=1,
        read_timeout_s=5,
    )


@pytest.fixture
def storage(config, tmp_path):
    return open_storage(f"s3://bucket/{tmp_path.name}", config)


@pytest.fixture
def direct(endpoint, tmp_path):
    """The same place without the proxy: what somebody else does to it."""
    return open_storage(f"s3://bucket/{tmp_path.name}", StorageConfig(endpoint_url=endpoint))


@pytest.fixture
def large_file(tmp_path):
    path = tmp_path / "large.bin"
    path.write_bytes(BODY * 4)
    return path


def unfinished_uploads(endpoint):
    return s3_client(endpoint).list_multipart_uploads(Bucket="bucket").get("Uploads", [])


def test_every_request_survives_a_busy_server(proxy, storage, large_file):
    proxy.answer(503, "SlowDown", times=3)
    storage.write("a", b"content")
    for use in [
        lambda: storage.read("a") == b"content",
        lambda: storage.open("a").read() == b"content",
        lambda: storage.stat("a").size == 7,
        lambda: [found.path for found in storage.list()] == ["a"],
        lambda: storage.create("b", b"") is True,
        lambda: storage.write_file("c", large_file) is None,
        lambda: storage.delete("a") is None,
        lambda: storage.delete_many(["b"]) is None,
        lambda: storage.delete_tree("") is None,
    ]:
        proxy.answer(503, "SlowDown", times=3)
        assert use()
    assert list(storage.list()) == []


def test_a_permanent_error_names_the_object_after_the_last_attempt(proxy, storage):
    proxy.answer(500, "InternalError", times=1000)
    with pytest.raises(RunError, match=rf"{storage.uri('a/b.tar')}.* 4 tries.*InternalError"):
        storage.read("a/b.tar")
    assert len(proxy.lines()) == 4


def test_a_refusal_is_not_repeated(proxy, storage):
    proxy.answer(400, "InvalidRequest")
    with pytest.raises(RunError, match="InvalidRequest"):
        storage.write("a", b"")
    assert len(proxy.lines()) == 1


def test_a_reset_body_is_continued_where_it_broke(proxy, storage):
    storage.write("a", BODY)
    proxy.reset(after_bytes=2 * MIB, match="^GET")
    assert storage.read("a") == BODY
    assert len(proxy.lines("^GET")) == 2
    assert proxy.bytes_sent("^GET") < 1.1 * len(BODY)


def test_a_truncated_body_is_continued_where_it_broke(proxy, storage):
    storage.write("a", BODY)
    proxy.truncate(after_bytes=2 * MIB, match="^GET")
    assert storage.read("a", 10) == BODY[10:]
    assert len(proxy.lines("^GET")) == 2
    assert proxy.bytes_sent("^GET") < 1.1 * len(BODY)


def test_a_range_of_which_less_is_given_is_asked_for_again_from_there(proxy, storage):
    storage.write("a", BODY)
    proxy.shorten(1000, match="^GET", times=2)
    assert storage.read("a", 10, MIB) == BODY[10 : MIB + 10]
    assert len(proxy.lines("^GET")) == 3
    assert proxy.bytes_sent("^GET") == MIB
    proxy.shorten(1000, match="^GET")
    assert storage.read("a", 2 * MIB) == BODY[2 * MIB :]
    assert storage.read("a", 2 * MIB, 9 * MIB) == BODY[2 * MIB :]
    assert len(proxy.lines("^GET")) == 6  # and the end of the object is known without another


def test_a_body_that_keeps_breaking_arrives_while_it_moves_on(proxy, storage):
    storage.write("a", BODY)
    proxy.reset(after_bytes=300_000, match="^GET", times=8)  # more often than max_attempts
    assert storage.read("a") == BODY


def test_a_body_that_never_starts_is_given_up(proxy, storage):
    storage.write("a", BODY)
    proxy.truncate(after_bytes=0, match="^GET", times=1000)
    with pytest.raises(RunError, match="without progress"):
        storage.read("a")
    assert len(proxy.lines("^GET")) == 4


def test_two_versions_are_never_mixed_in_one_read(proxy, storage, direct):
    storage.write("a", BODY)
    proxy.reset(after_bytes=MIB, match="^GET", then=lambda: direct.write("a", BODY[::-1]))
    with pytest.raises(RunError, match=rf"{storage.uri('a')} changed"):
        storage.read("a")


def test_two_versions_are_never_mixed_in_one_open_object(storage, direct):
    storage.write("a", BODY)
    with storage.open("a") as file:
        file.read(10)
        direct.write("a", BODY[::-1])
        with pytest.raises(RunError, match="changed"):
            file.read()


def test_an_object_removed_in_the_middle_is_missing(proxy, storage, direct):
    storage.write("a", BODY)
    proxy.reset(after_bytes=MIB, match="^GET", then=lambda: direct.delete("a"))
    with pytest.raises(FileNotFoundError):
        storage.read("a")


def test_small_reads_of_an_open_object_share_large_requests(proxy, storage):
    storage.write("a", BODY)
    with storage.open("a") as file:
        for _ in range(50):  # a demuxer: the index at the end, then data at the start
            for start in (len(BODY) - 5000, 0, 4000, MIB + 7):
                file.seek(start)
                assert file.read(100) == BODY[start : start + 100]
    assert len(proxy.lines("^GET")) == 3


def test_an_open_object_read_in_order_is_fetched_once(proxy, storage):
    storage.write("a", BODY)
    with storage.open("a") as file:
        assert b"".join(iter(lambda: file.read(65_537), b"")) == BODY
    assert proxy.bytes_sent("^GET") == len(BODY)


def test_an_open_object_is_fetched_once_however_often_it_is_read(proxy, storage, direct):
    direct.write("a", BODY * 2 + b"end")
    with storage.open("a") as file:
        for _ in range(3):
            file.seek(0)
            assert hash(file.read()) == hash(BODY * 2 + b"end")
        file.seek(5 * MIB - 2)
        assert file.read(4) == (BODY * 2)[5 * MIB - 2 : 5 * MIB + 2]
    assert proxy.bytes_sent("^GET") == len(BODY) * 2 + 3


def test_an_object_that_disappears_while_it_is_open_is_told(storage, direct):
    direct.write("a", BODY)
    with storage.open("a") as file:
        file.read(10)
        direct.delete("a")
        file.seek(2 * MIB)
        with pytest.raises(RunError, match="disappeared while it was read"):
            file.read(10)


def test_what_the_cache_may_not_hold_is_fetched_again(proxy, config, direct, tmp_path):
    direct.write("a", BODY * 2)
    small = open_storage(f"s3://bucket/{tmp_path.name}", config.model_copy(update={"cache_mib": 2}))
    with small.open("a") as file:
        for _ in range(2):
            file.seek(0)
            assert file.read() == BODY * 2
    assert proxy.bytes_sent("^GET") == (6 + 4) * MIB


def test_a_full_disk_costs_the_cache_and_not_the_reading(proxy, storage, direct, monkeypatch):
    direct.write("a", BODY * 2)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/no-folder")
    with storage.open("a") as file:
        for _ in range(2):
            file.seek(0)
            assert file.read() == BODY * 2
    assert proxy.bytes_sent("^GET") == 12 * MIB


def test_a_large_file_arrives_whole_although_parts_fail(proxy, storage, endpoint, large_file):
    proxy.answer(503, "SlowDown", match="partNumber=2", times=2)
    proxy.lose_answer(match="partNumber=3")
    storage.write_file("large", large_file)
    assert storage.read("large") == BODY * 4
    assert len(proxy.lines("partNumber=1")) == 1
    assert unfinished_uploads(endpoint) == []


def test_a_failed_upload_leaves_the_old_object_and_no_parts(proxy, storage, endpoint, large_file):
    storage.write("large", b"old")
    proxy.answer(500, "InternalError", match="partNumber=2", times=1000)
    with pytest.raises(RunError, match="large"):
        storage.write_file("large", large_file)
    assert storage.read("large") == b"old"
    assert unfinished_uploads(endpoint) == []


def test_an_upload_whose_last_answer_is_lost_has_succeeded(proxy, storage, endpoint, large_file):
    completing = r"^POST .*uploadId="
    proxy.lose_answer(completing)
    proxy.answer(404, "NoSuchUpload", completing)  # what MinIO says the second time
    storage.write_file("large", large_file)
    assert storage.stat("large").size == 12 * MIB
    assert unfinished_uploads(endpoint) == []


def test_a_large_file_is_created_once(proxy, storage, endpoint, large_file):
    proxy.lose_answer(r"^POST .*uploadId=")
    assert storage.create_file("large", large_file) is True
    storage.write("large", b"another writer's")
    assert storage.create_file("large", large_file) is False
    assert storage.read("large") == b"another writer's"
    assert unfinished_uploads(endpoint) == []


def test_an_upload_that_somebody_ended_has_failed(proxy, storage, large_file):
    storage.write("large", b"old")
    proxy.answer(404, "NoSuchUpload", r"^POST .*uploadId=")
    with pytest.raises(RunError, match="NoSuchUpload"):
        storage.write_file("large", large_file)
    assert storage.read("large") == b"old"


def test_a_sweep_ends_the_uploads_of_killed_writers_below_the_prefix_only(storage, endpoint, tmp_path):
    client = s3_client(endpoint)
    client.create_multipart_upload(Bucket="bucket", Key=f"{tmp_path.name}/a")
    other = client.create_multipart_upload(Bucket="bucket", Key=f"{tmp_path.name}-other/a")
    storage.sweep()
    assert [upload["UploadId"] for upload in unfinished_uploads(endpoint)] == [other["UploadId"]]
    client.abort_multipart_upload(Bucket="bucket", Key=other["Key"], UploadId=other["UploadId"])


def test_a_server_that_ignores_prefixes_costs_others_nothing(endpoint, direct, tmp_path):
    client, others = s3_client(endpoint), open_storage("s3://bucket/others", direct.config)
    others.write("a", b"theirs")
    upload = client.create_multipart_upload(Bucket="bucket", Key="others/b")["UploadId"]
    direct.write("a", b"ours")
    with FaultyProxy(endpoint, unasked={"prefix"}) as careless:
        storage = open_storage(direct.root, StorageConfig(endpoint_url=careless.url))
        storage.sweep()
        storage.delete_tree("")
        assert len(careless.lines("prefix=")) >= 2
    assert upload in [one["UploadId"] for one in unfinished_uploads(endpoint)]
    assert others.read("a") == b"theirs"
    assert direct.stat("a") is None
    client.abort_multipart_upload(Bucket="bucket", Key="others/b", UploadId=upload)


def test_a_server_that_ignores_conditions_of_reads_mixes_no_versions(endpoint, direct, config):
    with FaultyProxy(endpoint, ignored={"if-match"}) as careless:
        storage = open_storage(direct.root, config.model_copy(update={"endpoint_url": careless.url}))
        storage.write("a", BODY)
        careless.reset(after_bytes=MIB, match="^GET", then=lambda: direct.write("a", BODY[::-1]))
        with pytest.raises(RunError, match=rf"{storage.uri('a')} changed"):
            storage.read("a")


def test_a_create_whose_answer_is_lost_knows_its_own_object(proxy, storage):
    proxy.lose_answer(match="^PUT")
    assert storage.create("claim", b"same") is True
    assert storage.create("claim", b"same") is False


def test_a_swap_whose_answer_is_lost_knows_its_own_object(proxy, storage, direct):
    direct.write("head", b"old")
    version = storage.stat("head").version
    proxy.lose_answer(match="^PUT")
    assert storage.replace("head", b"new", version) is True
    assert direct.read("head") == b"new"
    assert storage.replace("head", b"newer", version) is False


def test_a_create_that_lost_against_another_writer_knows_it(proxy, storage, direct):
    proxy.answer(503, "SlowDown", match="^PUT")
    direct.write("claim", b"same")
    assert storage.create("claim", b"same") is False


def test_a_conflict_of_two_creates_is_settled_by_asking_again(proxy, storage):
    proxy.answer(409, "ConditionalRequestConflict", match="^PUT")
    assert storage.create("claim", b"") is True


def test_more_objects_than_a_page_are_listed_and_deleted(proxy, storage, endpoint, tmp_path):
    for name in (*(f"/{number:04}" for number in range(1005)), "-other"):
        put_directly("bucket", f"{tmp_path.name}{name}")
    assert [found.path for found in storage.list()] == [f"{number:04}" for number in range(1005)]
    storage.delete_tree("")
    assert list(storage.list()) == []
    assert len(proxy.lines("^POST")) == 2
    assert open_storage("s3://bucket", storage.config).stat(f"{tmp_path.name}-other")


def test_folder_markers_are_no_objects_and_go_with_the_tree(storage, endpoint, tmp_path):
    client = s3_client(endpoint)
    client.put_object(Bucket="bucket", Key=f"{tmp_path.name}/folder/")
    assert list(storage.list()) == []
    storage.delete_tree("folder/")
    assert client.list_objects_v2(Bucket="bucket", Prefix=tmp_path.name)["KeyCount"] == 0


def test_only_checksums_that_every_server_knows_are_sent(proxy, storage, large_file):
    storage.write("a", b"content")
    storage.create("b", b"content")
    storage.write_file("c", large_file)
    storage.read("a")
    storage.delete_tree("")
    names = {name.lower() for exchange in proxy.exchanges for name in exchange.headers}
    assert not [
        name for name in names if name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer"))
    ]
    assert "Content-MD5" in proxy.exchanges[-1].headers  # older servers demand it of DeleteObjects


def test_an_object_that_another_tool_wrote_in_parts_is_read(endpoint, storage, large_file, tmp_path):
    """Stores that name no type of a checksum give that of the parts as if it were of the whole."""
    client = boto3.client("s3", endpoint_url=endpoint)  # as the AWS command line uploads
    in_parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
    client.upload_file(str(large_file), "bucket", f"{tmp_path.name}/c", Config=in_parts)
    with storage.open("c") as file:
        assert file.read() == large_file.read_bytes()


def test_a_missing_bucket_is_named_by_every_call(config, large_file):
    storage = open_storage("s3://no-such-bucket/x", config)
    for use in [
        lambda: list(storage.list()),
        lambda: storage.stat("a"),
        lambda: storage.read("a"),
        lambda: storage.open("a"),
        lambda: storage.write("a", b""),
        lambda: storage.write_file("a", large_file),
        lambda: storage.create("a", b""),
        lambda: storage.delete_tree(""),
    ]:
        with pytest.raises(RunError, match="no bucket no-such-bucket"):
            use()


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "ExpiredToken"])
def test_denied_access_tells_what_to_check(proxy, storage, code):
    proxy.answer(403, code, times=2)
    for use in [lambda: storage.read("a"), lambda: storage.stat("a")]:
        with pytest.raises(RunError, match=r"bucket.*credentials"):
            use()


def test_missing_credentials_are_a_clear_stop(proxy, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    storage = open_storage("s3://bucket/x", StorageConfig(endpoint_url=proxy.url, region="us-west-2"))
    with pytest.raises(RunError, match="no AWS credentials"):
        storage.read("a")
    assert proxy.lines() == []


def test_a_server_that_is_not_there_is_named(config):
    with reserved_port() as port:
        gone = StorageConfig(endpoint_url=f"http://127.0.0.1:{port}", max_attempts=2, backoff_base_s=0.001)
        with pytest.raises(RunError, match=rf"s3://bucket/a.*http://127\.0\.0\.1:{port}"):
            open_storage("s3://bucket", gone).read("a")


def test_a_silent_server_is_not_waited_for_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        config = StorageConfig(
            endpoint_url=f"http://127.0.0.1:{port}", max_attempts=2, backoff_base_s=0.001, read_timeout_s=0.2
        )
        with pytest.raises(RunError, match="ReadTimeoutError"):
            open_storage("s3://bucket", config).read("a")


def test_neither_errors_nor_logs_repeat_what_the_environment_holds(monkeypatch, caplog, tmp_path):
    config = StorageConfig(max_attempts=2, backoff_base_s=0.001, region="eu-west-1")
    with (
        reserved_port() as port,
        caplog.at_level(logging.INFO, logger="reelweave.loader"),
        pytest.raises(RunError) as caught,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://user:hidden-word@127.0.0.1:{port}")
        open_storage("s3://bucket", config).read("a")
    assert "hidden-word" not in str(caught.value)
    assert caught.value.__suppress_context__
    written = [record.getMessage() for record in caplog.records if record.name.startswith("reelweave.loader")]
    assert len(written) == 1
    assert "hidden-word" not in written[0]
