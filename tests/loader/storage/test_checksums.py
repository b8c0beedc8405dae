"""Checksums of whole objects as S3 computes them."""

import base64

import pytest

from reelweave.loader.storage.s3.checksums import whole_check

NINE = b"123456789"  # the check values of the catalogue of parametrised CRC algorithms (reveng)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ChecksumCRC64NVME", "ae8b14860a799888"),
        ("ChecksumCRC32C", "e3069283"),
        ("ChecksumCRC32", "cbf43926"),
        ("ChecksumSHA1", "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
        ("ChecksumSHA256", "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
    ],
)
def test_known_bytes_have_their_known_checksum(name: str, value: str) -> None:
    check = whole_check({name: base64.b64encode(bytes.fromhex(value)).decode(), "ETag": '"x"'})
    assert check is not None
    assert (check.name, check.sure) == (name.removeprefix("Checksum"), True)
    check.update(NINE[:4])
    assert not check.agrees()
    check.update(NINE[4:])
    assert check.agrees()


def test_an_etag_counts_where_it_may_be_an_md5() -> None:
    etag = '"25f9e794323b453885f5181f1b624d0b"'
    check = whole_check({"ETag": etag, "ServerSideEncryption": "AES256"})
    assert check is not None
    check.update(NINE)
    assert (check.agrees(), check.sure) == (True, False)
    for other in (
        {"ETag": etag.replace('d0b"', 'd0b-2"')},
        {"ETag": etag, "ServerSideEncryption": "aws:kms"},
        {"ETag": etag, "SSECustomerAlgorithm": "AES256"},
        {"ETag": "", "ChecksumCRC32": "AAAAAA==-2"},
        {"ETag": "", "ChecksumCRC32": "AAAAAA==", "ChecksumType": "COMPOSITE"},
        {"ETag": etag.replace('d0b"', 'd0b-2"'), "ChecksumCRC32": "AAAAAA=="},
    ):
        assert whole_check(other) is None


def test_a_checksum_of_an_upload_in_parts_counts_where_the_store_calls_it_whole() -> None:
    etag, value = '"25f9e794323b453885f5181f1b624d0b-2"', base64.b64encode(bytes.fromhex("cbf43926")).decode()
    check = whole_check({"ETag": etag, "ChecksumCRC32": value, "ChecksumType": "FULL_OBJECT"})
    assert check is not None
    check.update(NINE)
    assert check.agrees()
