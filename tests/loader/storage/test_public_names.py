"""Names of web addresses: without secrets, stable when signed anew, and different for different films."""

import pytest

from reelweave.loader.storage import public_url
from reelweave.loader.storage.names import without_secrets

HEX = "0123456789abcdef" * 4
RANDOM = "q8Zr3KfLm0Xc71TbYw5E"


@pytest.mark.parametrize(
    "parameter",
    [
        "key=films/{}",
        "session={}",
        "author={}",
        "st={}",
        "token=film{}",
        "expires={}",
        "policy={}",
        "t%6Fken={}",
    ],
)
def test_addresses_that_differ_in_the_query_keep_different_names(parameter: str) -> None:
    addresses = [f"https://host/get?{parameter.format(index)}" for index in range(5)]
    shown = [public_url(address) for address in addresses]
    assert len(set(shown)) == 5
    assert [public_url(name) for name in shown] != addresses
    assert all(
        address.rpartition("=")[2] not in name.rpartition("sha256-")[0]
        for address, name in zip(addresses, shown, strict=True)
    )
    for message in (f"{shown[0]}: fails", f"list {shown[0]}#line=3", f"({shown[0]})."):
        assert without_secrets(message) == message


@pytest.mark.parametrize(
    "signed",
    [
        "X-Amz-Algorithm=A&X-Amz-Credential=C{0}&X-Amz-Date={0}&X-Amz-Signature={0}&X-Amz-Security-Token={0}",
        "X-Goog-Algorithm=A&X-Goog-Credential=C{0}&X-Goog-Expires=9&X-Goog-Signature={0}",
        "AWSAccessKeyId=A{0}&Signature={0}&Expires={0}",
        "GoogleAccessId=A{0}&Expires={0}&Signature={0}",
        "Policy=P{0}&Signature={0}&Key-Pair-Id=K",
        "Expires={0}&Signature={0}&Key-Pair-Id=K",
        "sv=2024&st={0}&se={0}&sr=b&sp=r&spr=https&skoid=a&sktid=b&sig={0}",
        "sig={0}",
        "signature={0}",
        "token=" + RANDOM + "{0}",
        "auth=" + HEX + "{0}",
        "token=" + HEX + "{0}&expires={0}",
        "api_key={0}",
        "password={0}",
    ],
)
def test_a_link_that_is_signed_anew_keeps_its_name(signed: str) -> None:
    names = {public_url(f"https://host/a.mp4?id=7&{signed.format(number)}") for number in (1, 2)}
    assert names == {"https://host/a.mp4?id=7"}


@pytest.mark.parametrize("path", ["get", "v1.2/g", "get.php"])
def test_a_token_alone_names_a_film_where_the_path_names_none(path: str) -> None:
    names = {public_url(f"https://host/{path}?token={RANDOM}{number}") for number in (1, 2)}
    assert len(names) == 2
    assert RANDOM not in "".join(names)


def test_parts_of_a_scheme_alone_are_no_signature() -> None:
    for parameter in ("se", "sv", "Key-Pair-Id", "X-Amz-Date", "AWSAccessKeyId", "policy"):
        assert len({public_url(f"https://host/a.mp4?{parameter}={number}") for number in (1, 2)}) == 2


def test_a_parameter_without_a_value_is_digested_as_a_whole() -> None:
    names = {public_url(f"https://host/get?session{number}") for number in (1, 2)}
    assert len(names) == 2
    assert all(name.startswith("https://host/get?sha256-") for name in names)
    assert public_url("https://host/get?key=") == "https://host/get?key="


def test_a_name_is_its_own_name() -> None:
    """Take-downs and updates name sources by what the tables show."""
    for query in ("key=films/1", "session7", f"token={RANDOM}", "a=1&sk=2"):
        name = public_url(f"https://host/get?{query}")
        assert public_url(name) == name
