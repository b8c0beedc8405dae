"""What a name may lead to, by the place where it stands."""

import pytest
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_object, open_storage
from reelweave.loader.storage.reach.permissions import only_public, refusal

WEB, S3, LOCAL, PERSON = (
    "https://films.example/lists/l.csv",
    "s3://bucket/lists/l.csv",
    "/data/lists/l.csv",
    "",
)
FILE, NEAR, FAR = "/data/a.mp4", "s3://bucket/a.mp4", "s3://other/a.mp4"
HOST, OTHER = "https://films.example/a.mp4", "https://elsewhere.example/a.mp4"


@pytest.mark.parametrize(
    ("listed_in", "may"),
    [
        (PERSON, {FILE, NEAR, FAR, HOST, OTHER}),
        (LOCAL, {FILE, NEAR, FAR, HOST, OTHER}),
        (S3, {NEAR}),
        (WEB, {HOST}),
    ],
)
def test_a_list_names_what_lies_where_it_lies(listed_in, may):
    assert {uri for uri in (FILE, NEAR, FAR, HOST, OTHER) if refusal(uri, listed_in, ()) is None} == may


@pytest.mark.parametrize("listed_in", [WEB, S3])
@pytest.mark.parametrize(
    ("prefix", "uri"),
    [
        ("https://", OTHER),
        ("https://elsewhere.example", OTHER),
        ("https://elsewhere.example/films/", "https://elsewhere.example/films/deep/a.mp4"),
        ("https://elsewhere.example:8443/", "https://ELSEWHERE.example.:8443/a.mp4"),
        ("s3://", FAR),
        ("s3://other", FAR),
        ("s3://other/films/", "s3://other/films/a.mp4"),
        ("/data", FILE),
        ("file:///data/", FILE),
    ],
)
def test_a_prefix_allows_what_lies_below_it(listed_in, prefix, uri):
    assert refusal(uri, listed_in, ()) is not None
    assert refusal(uri, listed_in, (prefix,)) is None


@pytest.mark.parametrize(
    ("prefix", "uri"),
    [
        ("https://elsewhere.example/films", "https://elsewhere.example/films2/a.mp4"),
        ("https://elsewhere.example/films/", "https://elsewhere.example/films/../private/a.mp4"),
        ("https://elsewhere.example/films/", "https://elsewhere.example/films/%2e%2e/private/a.mp4"),
        ("https://elsewhere.example/films/", "https://elsewhere.example/films/..%5cprivate/a.mp4"),
        ("https://elsewhere.example/films/", "https://elsewhere.example/films%2f..%2fprivate/a.mp4"),
        ("https://elsewhere.example", "http://elsewhere.example/a.mp4"),
        ("https://elsewhere.example", "https://elsewhere.example:8443/a.mp4"),
        ("https://elsewhere.example", "https://elsewhere.example.evil.example/a.mp4"),
        ("https://", "http://elsewhere.example/a.mp4"),
        ("s3://other/films", "s3://other/films2/a.mp4"),
        ("/data/films", "/data/films2/a.mp4"),
        ("/data/films", "/data/films/../a.mp4"),
    ],
)
def test_a_prefix_allows_nothing_beside_it(prefix, uri):
    assert refusal(uri, "https://films.example/l.csv", (prefix,)) is not None


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "films",
        "./films",
        "ftp://host/",
        "https://me:pw@host/",
        "https:///films",
        "/data/../x",
        "http://[::1",
        "file://x",
    ],
)
def test_a_prefix_that_means_nothing_is_refused(prefix):
    with pytest.raises(ValidationError, match="write http"):
        StorageConfig(allowed_prefixes=(prefix,))


ADDRESS = "http://films.example/a.mp4"
NUMBER = "http://127.0.0.1:8000/l.txt"


@pytest.mark.parametrize(
    ("target", "address", "listed_in", "prefixes", "expected"),
    [
        (ADDRESS, ADDRESS, PERSON, (), False),  # typed
        ("http://films.example/moved.mp4", ADDRESS, PERSON, (), False),
        ("http://films.example:81/moved.mp4", ADDRESS, PERSON, (), True),
        ("http://127.0.0.1/", ADDRESS, PERSON, (), True),
        (ADDRESS, ADDRESS, LOCAL, (), True),
        (ADDRESS, ADDRESS, "http://films.example/l.txt", (), True),  # its name may mean another address now
        ("http://127.0.0.1:8000/a", "http://127.0.0.1:8000/a", NUMBER, (), False),
        ("http://127.0.0.1:9200/a", "http://127.0.0.1:9200/a", NUMBER, (), True),
        (ADDRESS, ADDRESS, LOCAL, ("http://films.example/",), True),
        ("http://10.0.0.7/a", "http://10.0.0.7/a", LOCAL, ("http://10.0.0.7/",), False),
        ("http://10.0.0.7/a", "http://10.0.0.7/a", LOCAL, ("http://",), True),
    ],
)
def test_private_addresses_are_for_servers_a_person_wrote_down(
    target, address, listed_in, prefixes, expected
):
    assert only_public(target, address, listed_in, prefixes, allow_private=False) is expected
    assert only_public(target, address, listed_in, prefixes, allow_private=True) is False


SPELLINGS = [
    *(
        "file:{}",
        "file://{}",
        "file:///{}",
        "FILE:{}",
        "File://{}",
        "file://localhost{}",
        "{}",
        "//{}",
        "./..{}",
    ),
    *("file:/%2e%2e{}", "file://{}?x", "file://{}#x", "file:/./{}"),
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("listed_in", [WEB, S3])
def test_no_spelling_of_a_file_is_opened_for_a_list_from_elsewhere(tmp_path, spelling, listed_in):
    (tmp_path / "private.mp4").write_bytes(b"private")
    with pytest.raises(UsageError):
        open_object(spelling.format(f"{tmp_path}/private.mp4"), StorageConfig(), listed_in)
    with pytest.raises(UsageError):
        open_storage(spelling.format(tmp_path), StorageConfig(), listed_in)
