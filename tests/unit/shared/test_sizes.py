"""Sizes read and print as people write them."""

import pytest

from shared.sizes import InvalidSize, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1024", 1024), ("1kB", 1000), ("1 KiB", 1024), ("2GiB", 2 << 30), ("0.5MB", 500_000)]
)
def test_a_size_is_read_as_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "1XB", "1.2.3MB"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidSize, match="write for example"):
        parse_size(text)


@pytest.mark.parametrize("text", ["8388608TiB", "9223372036854775808", "9" * 400, "9" * 5_000 + "GiB"], ids=len)
def test_a_size_that_takes_more_than_64_bits_is_refused(text: str) -> None:
    assert parse_size("8388607TiB") == 8_388_607 << 40
    with pytest.raises(InvalidSize, match="larger than 8 EiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (10_240, "10 KiB"), (1_500_000, "1.43 MiB"), (1 << 40, "1.00 TiB")],
)
def test_a_size_is_written_for_people(size: int, text: str) -> None:
    assert format_size(size) == text
