"""From a URI or a path to a storage: what is taken, what is refused, and that nothing secret is repeated."""

from pathlib import Path

import pytest

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_object, open_storage


def test_opening_creates_nothing(tmp_path):
    open_storage(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_relative_folder_stays_the_same_after_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = open_storage("out")
    monkeypatch.chdir("/")
    storage.write("a", b"here")
    assert (tmp_path / "out" / "a").read_bytes() == b"here"


@pytest.mark.parametrize("start", ["file://", "file://localhost", "file:", "FILE://"])
def test_file_uris_are_percent_decoded(tmp_path, start):
    (tmp_path / "a b#1").mkdir()
    (tmp_path / "a b#1" / "c%.mp4").write_bytes(b"x")
    storage, name = open_object(f"{start}{tmp_path}/a%20b%231/c%25.mp4")
    assert name == "c%.mp4"
    assert storage.read(name) == b"x"


def test_an_object_in_the_current_folder_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("clip.mp4").write_bytes(b"x")
    storage, name = open_object("clip.mp4")
    assert storage.read(name) == b"x"


@pytest.mark.parametrize(
    "uri", ["gs://bucket/x", "ftp://host/x", "s3:/bucket/x", "s3://", "file://host/x", ""]
)
def test_other_places_are_refused_by_name(uri):
    with pytest.raises(UsageError, match=r"s3://bucket/prefix"):
        open_storage(uri)


def test_a_path_object_made_of_an_s3_uri_is_not_taken_for_a_folder():
    with pytest.raises(UsageError, match="s3:/bucket/x"):
        open_storage(Path("s3://bucket/x"))


def test_a_file_is_no_storage(tmp_path):
    (tmp_path / "list.txt").touch()
    with pytest.raises(UsageError, match=r"list\.txt"):
        open_storage(tmp_path / "list.txt")


@pytest.mark.parametrize(
    "uri", ["s3://bucket", "s3://bucket/", "s3://bucket/folder/", "/folder/", "", "/tmp/.."]
)
def test_a_place_is_no_object(uri):
    with pytest.raises(UsageError):
        open_object(uri)


@pytest.mark.parametrize(
    "secret", ["s3://KEY:se/cret@bucket/x", "ftp://u:secret@host/x", "gs://host/x?sig=secret"]
)
def test_secrets_in_a_uri_are_not_repeated(secret):
    for opener in (open_storage, open_object):
        with pytest.raises(UsageError) as caught:
            opener(secret)
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://key:secret@host:9000", "http://host?token=secret", "host:9000"])
def test_an_endpoint_that_is_wrong_or_holds_secrets_is_refused_without_repeating_it(url):
    with pytest.raises(ValueError, match="endpoint_url") as caught:
        StorageConfig(endpoint_url=url)
    assert "secret" not in str(caught.value)
