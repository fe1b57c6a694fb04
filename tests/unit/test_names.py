"""DNS-1123 names, and cluster names derived from host names."""

import random
import string

import pytest

from rayhistory.names import MAX_CLUSTER_NAME_LENGTH, cluster_name_from, parse_dns_name


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a--b", "gpu-01.local", "a.b.c", "x" * 253])
def test_dns_names_are_accepted(name: str) -> None:
    assert parse_dns_name(f" {name}\n") == name


@pytest.mark.parametrize(
    "text", ["", " ", "A", "a_b", "-a", "a-", ".a", "a.", "a..b", "a.-b", "a-.b", "a/b", "ü", "a b", "a\nb", "x" * 254]
)
def test_other_names_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(ValueError, match="lower-case letters, digits"):
        parse_dns_name(text)


@pytest.mark.parametrize(
    ("host", "cluster"),
    [
        ("vm", "vm"),
        ("gpu-01.local", "gpu-01.local"),
        ("gpu--01.local", "gpu--01.local"),
        ("My_Laptop.local", "my-laptop.local"),
        ("-x-", "x"),
        ("a-.-b", "a.b"),
        ("a..b.", "a.b"),
        ("ümlaut", "mlaut"),
        ("日本", "local"),
        ("", "local"),
        ("x" * 80, "x" * 63),
        (f"{'x' * 62}.y", "x" * 62),
        (f"{'x' * 62}-y", "x" * 62),
    ],
)
def test_host_name_becomes_cluster_name(host: str, cluster: str) -> None:
    assert cluster_name_from(host) == cluster


@pytest.mark.parametrize("seed", range(20))
def test_cluster_name_for_any_host_is_a_short_dns_name(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        host = "".join(rng.choices(string.ascii_letters + "019--..__ üİß\0", k=rng.randrange(100)))
        name = cluster_name_from(host)
        assert parse_dns_name(name) == name
        assert len(name) <= MAX_CLUSTER_NAME_LENGTH
        assert cluster_name_from(name) == name
