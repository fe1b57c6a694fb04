"""All kinds of panels in a real browser: numbers, gauges, tables, heatmaps, gaps, hostile labels, a point in time."""

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.monitored_browser import MonitoredBrowser, chromium, save_screenshot
from rayhistory.metrics.dashboard_bundle import encode_bundle
from rayhistory.sessions import Layout
from support.server_process import running_server
from support.stored_metrics import REF, START_MS, Columns, samples, store_object, store_session

NODES = {"a" * 56: "10.0.0.1", "b" * 56: "10.0.0.2", "d" * 56: "10.0.0.3"}
HOSTILE = '<img src=x onerror="document.title=1">"\'</script>'
STEPS = 200
KINDS = ("timeseries", "stat", "gauge", "bargauge", "table", "heatmap", "nodeGraph")


def panel(number: int, kind: str, expression: str, legend: str) -> dict[str, Any]:
    place = {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8}
    target = {"expr": expression, "legendFormat": legend}
    return {"id": number + 1, "type": kind, "title": f"{kind} {HOSTILE}", "gridPos": place, "targets": [target]}


def dashboard() -> bytes:
    expressions = {"heatmap": ("sum by (le) (rate(latency_bucket[1m]))", "{{le}}")}
    panels = [panel(number, kind, *expressions.get(kind, ("load", "{{instance}} {{name}}")))
              for number, kind in enumerate(KINDS)]  # fmt: skip
    panels.append(panel(len(KINDS), "timeseries", 'load{instance=~"$Node"}', "{{instance}}"))
    stacking = {"custom": {"stacking": {"mode": "normal"}, "fillOpacity": 80}}
    stack = panel(len(KINDS) + 1, "timeseries", "layer", "{{name}}")
    panels.append(stack | {"fieldConfig": {"defaults": stacking, "overrides": []}})
    variable = {"name": "Node", "type": "query", "query": "label_values(load, instance)", "multi": True,
                "includeAll": True}  # fmt: skip
    body = {"uid": "kinds", "title": f"Kinds {HOSTILE}", "panels": panels, "templating": {"list": [variable]}}
    return json.dumps(body).encode()


def columns(address: str) -> Columns:
    load = [10 + 5 * math.sin(step / 20) for step in range(STEPS)]
    buckets: Columns = {
        ("latency_bucket", (("ip", address), ("le", bound))): [step * share for step in range(STEPS)]
        for bound, share in (("0.1", 1.0), ("1", 3.0), ("+Inf", 4.0))
    }
    return {("load", (("ip", address), ("name", HOSTILE))): load, **buckets}


def layers() -> Columns:
    """Series to stack, of which the one in the middle ends early."""
    ends = {"a": STEPS, "b": STEPS // 2, "c": STEPS}
    return {
        ("layer", (("ip", "10.0.0.1"), ("name", name))): [1.0 if step < end else math.nan for step in range(STEPS)]
        for name, end in ends.items()
    }


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("panels")
    store = directory / "store"
    store_session(store)
    for node, address in NODES.items():
        more = layers() if address == "10.0.0.1" else {}
        store_object(store, node, samples(columns(address) | more, step_ms=2_000, dropped=7))
    store_object(store, "c" * 56, b"damaged", START_MS + 60_000)
    bundle = store / Layout().grafana_dashboards_key(REF)
    bundle.parent.mkdir(parents=True, exist_ok=True)
    bundle.write_bytes(encode_bundle({"kinds.json": dashboard()}))
    with running_server(store, directory / "work", "--index-ahead=false") as address:
        yield f"{address}{REF.url}"


@pytest.fixture(scope="module")
def browser(session: str) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def drawn(page: Page, kind: str) -> Locator:
    card = page.locator(f'[data-panel="{KINDS.index(kind) + 1}"]')
    card.scroll_into_view_if_needed()
    expect(card.locator(".chart-body")).to_have_attribute("data-state", "drawn")
    return card


def colored_pixels(card: Locator, share: float) -> int:
    """Return the number of colored pixels in a column of a chart."""
    found: int = card.locator("canvas").evaluate(
        """(canvas, share) => {
          const context = canvas.getContext("2d");
          const column = context.getImageData(Math.round(canvas.width * share), 0, 1, canvas.height).data;
          let count = 0;
          for (let at = 0; at < column.length; at += 4) {
            const rgb = [...column.slice(at, at + 3)];
            count += column[at + 3] > 100 && Math.max(...rgb) - Math.min(...rgb) > 60;
          }
          return count;
        }""",
        share,
    )
    return found


def api_values(session: str, kind: str) -> list[float]:
    response = httpx.get(f"{session}api/history/charts/kinds/panels/{KINDS.index(kind) + 1}", params={"from": "now-5m"})
    return [each["values"][-1] for each in response.json()["series"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_kind_of_panel_shows_the_values_of_the_api(monitored: MonitoredBrowser, session: str, theme: str) -> None:
    page = monitored.open(f"{session}grafana/d/kinds/?theme={theme}&from=now-5m&to=now&timezone=UTC")
    for kind in ("stat", "gauge", "bargauge", "table"):
        shown = drawn(page, kind).locator("td.number" if kind == "table" else ".chart-body b")
        expect(shown).to_have_text([f"{value:.3g}" for value in api_values(session, kind)])
    for kind in ("timeseries", "heatmap"):
        expect(drawn(page, kind).locator("canvas")).to_be_visible()
    expect(drawn(page, "nodeGraph").get_by_text("not drawn here")).to_be_visible()
    expect(drawn(page, "table").get_by_role("cell", name=HOSTILE).first).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    save_screenshot(page, f"chart-panels-{theme}")


def test_labels_are_text_and_gaps_and_limits_have_reasons(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.open(f"{session}grafana/d/kinds/?theme=light&from=now-5m&to=now&timezone=UTC")
    card = drawn(page, "timeseries")
    expect(card.locator(".chart-legend button").first).to_have_text(f"10.0.0.1 {HOSTILE}")
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "1"
    notes = card.inner_html() + card.inner_text()
    assert "Hatched: metrics of node cccccccccccc could not be read" in notes
    assert "7 series were not stored" in notes


def test_stack_is_filled_where_a_series_below_has_no_value(monitored: MonitoredBrowser, session: str) -> None:
    """Three layers of 1; the one in the middle ends at half of the time."""
    page = monitored.open(f"{session}grafana/d/kinds/?theme=light&from=now-5m&to=now&timezone=UTC")
    card = page.locator(f'[data-panel="{len(KINDS) + 2}"]')
    card.scroll_into_view_if_needed()
    expect(card.locator(".chart-body")).to_have_attribute("data-state", "drawn")
    save_screenshot(page, "chart-stack")
    before, after = colored_pixels(card, 0.3), colored_pixels(card, 0.8)
    assert 0.6 < after / before < 0.75


def test_several_values_of_a_variable_are_chosen(monitored: MonitoredBrowser, session: str) -> None:
    """The choice counts when the menu closes. All excludes other values, and no value means All."""
    page = monitored.open(f"{session}grafana/d/kinds/?theme=light&from=now-5m&to=now&timezone=UTC")
    body = page.locator(f'[data-panel="{len(KINDS) + 1}"] .chart-body')
    body.scroll_into_view_if_needed()
    expect(body).to_have_attribute("data-series", "3")
    menu = page.locator("details.chart-variable")
    for chosen, series in ((["10.0.0.2"], 1), (["10.0.0.1", "10.0.0.3"], 2), (["All"], 3)):
        menu.locator("summary").click()
        for name in NODES.values():
            menu.get_by_label(name).set_checked(name in chosen)
        save_screenshot(page, f"chart-variable-{series}")
        page.keyboard.press("Escape")
        expect(menu.locator("summary b")).to_have_text(" + ".join(chosen))
        expect(body).to_have_attribute("data-series", str(series))
        assert page.url.count("var-Node=") == len(chosen)


def test_charts_end_at_the_chosen_point_in_time(monitored: MonitoredBrowser, session: str) -> None:
    at = START_MS + 100_000
    earlier = f"{session[:-1]}@{at}/"
    data = httpx.get(f"{earlier}api/history/charts/kinds/panels/1", params={"from": "now-5m"}).json()
    assert at <= data["to_ms"] < at + data["step_ms"]
    page = monitored.open(f"{earlier}grafana/d/kinds/?theme=light&from=now-5m&to=now&timezone=UTC")
    expect(drawn(page, "stat").locator(".chart-body b")).to_have_text(
        [f"{each['values'][-1]:.3g}" for each in data["series"]]
    )


def test_dashboard_fits_a_narrow_window(monitored: MonitoredBrowser, session: str) -> None:
    page = monitored.page()
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{session}grafana/d/kinds/?theme=dark&from=now-5m&to=now&timezone=UTC")
    card = drawn(page, "timeseries")
    plot, legend = (card.locator(each).bounding_box() for each in (".uplot", ".chart-legend"))
    assert plot
    assert legend
    assert plot["y"] + plot["height"] <= legend["y"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    save_screenshot(page, "chart-panels-narrow")
