"""Which addresses are public, however they are spelled."""

import pytest

from reelweave.loader.storage.reach.addresses import is_public, written_address


@pytest.mark.parametrize(
    "address",
    ["1.2.3.4", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::1"],
)
def test_addresses_of_the_internet_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.9.10", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *(
            "169.254.169.254",
            "169.254.170.2",
            "100.64.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
        ),
        *(
            "192.0.2.1",
            "198.51.100.7",
            "203.0.113.9",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ),
        *(
            "::",
            "::1",
            "::127.0.0.1",
            "fe80::1",
            "fe80::1%eth0",
            "fec0::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
        ),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:7f00:1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1"),
        *("64:ff9b:1::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "3fff::1", "5f00::1"),
        *("", "films.example", "1.2.3", "0x7f.0.0.1"),
    ],
)
def test_all_others_are_not(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "017700000001",
            "0177.0.0.1",
            "0x7f.1",
            "127.0.0.1.",
        ),
        *("localhost", "LocalHost.", "a.localhost", "１２７.0.0.1", "①②⑦.0.0.1"),  # noqa: RUF001
    ],
)
def test_a_host_that_spells_loopback_is_known_without_a_look_up(host):
    assert written_address(host) == "127.0.0.1"


def test_other_written_addresses_and_names():
    assert written_address("[::1]") == "::1"
    assert written_address("0") == "0.0.0.0"
    assert [written_address(host) for host in ("films.example", "1.2.3.4.5", "localhost.example", "")] == [
        None
    ] * 4
