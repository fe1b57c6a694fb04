"""Keys equal those of KubeRay, and parse back to sessions."""

import re

import pytest

from rayhistory.errors import UsageError
from rayhistory.sessions import Layout, SessionRef
from rayhistory.sessions.kuberay_keys import endpoint_uri
from rayhistory.sessions.layout_reference import SECTIONS, document
from support.paths import DOCS

SESSION = "session_2026-08-12_09-15-02_123456_1"
PLAIN = SessionRef("default", "raycluster", SESSION)
OWNED = SessionRef("default", "rayjob-x7k2p", SESSION, "rayjob", "nightly")
NODE = "0f690c018f332312c5b989cb5e700a26dbae9b206feb5f1f086485ee"


@pytest.mark.parametrize("root", ["", "log", "/log/", "a//b"])
@pytest.mark.parametrize("ref", [PLAIN, OWNED])
def test_metadata_keys_round_trip(root: str, ref: SessionRef) -> None:
    layout = Layout(root)
    assert layout.parse_metadata_key(layout.metadata_key(ref)) == ref


def test_keys_follow_kuberays_current_layout() -> None:
    layout = Layout()
    history = f"cluster-history/rayjob/default/nightly/rayjob-x7k2p/{SESSION}"
    assert layout.metadata_key(OWNED) == f"cluster-metadata/rayjob/default_nightly_rayjob-x7k2p/{SESSION}"
    assert layout.metadata_key(PLAIN) == f"cluster-metadata/raycluster/default_raycluster/{SESSION}"
    assert layout.log_key(OWNED, NODE, "events/event_JOBS.log") == f"{history}/{NODE}/logs/events/event_JOBS.log"
    key = layout.events_key(OWNED, NODE, "job_events/01000000", 1786526102000000001, compressed=True)
    assert key == f"{history}/{NODE}/job_events/01000000/{NODE}-2026-08-12-09-1786526102000000001.jsonl.gz"
    assert re.search(r"-\d{4}-\d{2}-\d{2}-\d{2}(-\d+)?(\.jsonl)?(\.gz)?$", key)
    uri = "/api/v0/placement_groups?detail=1&limit=10000"
    expected = "fetched_endpoints/restful__api__v0__placement_groups?detail=1&limit=10000"
    assert layout.endpoint_key(PLAIN, uri).endswith(expected)
    assert layout.endpoint_key(PLAIN, "/api/serve/applications/").endswith("/restful__api__serve__applications")


@pytest.mark.parametrize(
    "key",
    [
        "cluster-metadata/raycluster/default_c/",
        "cluster-metadata/raycluster/default_c/notes.txt",
        f"cluster-metadata/raycluster/default_c_d/{SESSION}",
        f"cluster-metadata/rayjob/default_c/{SESSION}",
        f"cluster-metadata/other/default_c/{SESSION}",
        f"cluster-metadata/raycluster/.._../{SESSION}",
        f"elsewhere/raycluster/default_c/{SESSION}",
        f"cluster-metadata/raycluster/default_c/deeper/{SESSION}",
    ],
)
def test_other_keys_are_ignored(key: str) -> None:
    assert Layout().parse_metadata_key(key) is None


@pytest.mark.parametrize(
    "name", ["session_latest", "session_x", "../x", f"{SESSION}/..", f"{SESSION}\n", "", "x" * 300]
)
def test_invalid_session_name_is_rejected(name: str) -> None:
    with pytest.raises(UsageError):
        SessionRef.checked("default", "c", name)


@pytest.mark.parametrize("name", ["..", "a_b", "A", "a/b", "a\0", "", "-a", "x" * 300])
def test_namespace_that_is_not_dns_1123_is_rejected(name: str) -> None:
    with pytest.raises(UsageError):
        SessionRef.checked(name, "c", SESSION)


def test_layout_document_is_generated_from_the_keys() -> None:
    """`make docs` writes docs/reference/storage-layout.md, which has every key of the layout."""
    text = (DOCS / "reference/storage-layout.md").read_text()
    assert text == document(), "run: make docs"
    keys = {name for name in vars(Layout) if name.endswith("_key") and not name.startswith("parse")}
    assert keys <= {row.method for rows in SECTIONS.values() for row in rows}


@pytest.mark.parametrize("uri", ["/api/serve/applications", "/api/v0/placement_groups?detail=1&limit=10000"])
@pytest.mark.parametrize("release", ["v1.6", "v1.7"])
def test_endpoint_keys_round_trip(uri: str, release: str) -> None:
    assert endpoint_uri(Layout(release=release).endpoint_key(PLAIN, uri)).rstrip("/") == uri


def test_products_are_no_generations_of_the_tables() -> None:
    """A fold deletes old generations, also one of a release that knows no products."""
    layout = Layout()
    manifest = layout.product_manifest_key(PLAIN, "counted", 3)
    assert layout.parse_product_manifest_key(manifest) == 3
    assert layout.is_index_manifest(manifest)
    for key in (manifest, layout.product_file_key(PLAIN, "counted", "3-b", "names.json")):
        assert layout.generation_of(PLAIN, key) is None


LONG = SessionRef("a" * 253, "b" * 253, PLAIN.session)


@pytest.mark.parametrize("ref", [PLAIN, SessionRef("team-a", "c.d", PLAIN.session), LONG])
def test_session_of_an_announced_summary_is_parsed_from_its_key(ref: SessionRef) -> None:
    layout = Layout("root")
    key = layout.run_inbox_key(ref, 42, "0a")
    earlier = f"{layout.run_inbox_prefix()}/{ref.path}/42-0a.json"
    assert len(key.rpartition("/")[2]) <= 255
    for each in (key, earlier):
        assert layout.parse_run_inbox_key(each) == (SessionRef(*ref.identity), 42)
        for stored in (each, layout.run_quarantine_key(each)):
            assert layout.is_run_summary(ref, stored)
            assert any(stored.startswith(f"{prefix}/") for prefix in layout.run_inbox_prefixes(ref))
            assert not layout.is_run_summary(SessionRef(ref.namespace, "other", ref.session), stored)


@pytest.mark.parametrize(
    "name", ["a/b_1-0a.json", "a/b_session_1-0a.json", f"a/_{PLAIN.session}_1-0a.json", "a", "", "a/b/c/d/1-0a.json"]
)
def test_other_keys_in_the_inbox_are_no_summaries(name: str) -> None:
    assert Layout().parse_run_inbox_key(f"{Layout().run_inbox_prefix()}/{name}") is None


def test_leases_of_tables_and_products_are_recognized() -> None:
    layout = Layout()
    assert layout.is_index_lease(PLAIN, layout.lease_key(PLAIN))
    assert layout.is_index_lease(PLAIN, layout.product_lease_key(PLAIN, "counted"))
    assert not layout.is_index_lease(PLAIN, layout.product_manifest_key(PLAIN, "counted", 3))
