// Grafana's dashboards over the stored metrics of a session: variables, time range, rows and panels. Panels load when
// they come into view.
"use strict";

(() => {
  const { element, formatTime, timeZone, drawPanel, selectOf, variableSelect } = window.rayHistoryCharts;
  const params = new URLSearchParams(location.search);
  const root = document.documentElement;
  const PRESETS = [["5 minutes", "now-5m"], ["15 minutes", "now-15m"], ["30 minutes", "now-30m"], ["1 hour", "now-1h"],
    ["3 hours", "now-3h"], ["12 hours", "now-12h"], ["24 hours", "now-24h"], ["7 days", "now-7d"]];
  const MIN_REFRESH_MS = 10_000;
  const RESIZE_DELAY_MS = 150;

  if (["light", "dark"].includes(params.get("theme"))) root.dataset.theme = params.get("theme");

  const start = async () => {
    const page = document.getElementById("charts");
    const toolbar = document.getElementById("chart-toolbar");
    const { uid, running, solo } = page.dataset;
    const onlyPanel = solo ? Number(params.get("panelId") ?? params.get("viewPanel")) : null;
    const sessionPath = location.pathname.slice(0, location.pathname.lastIndexOf("/grafana/"));
    const requested = { from: params.get("from") || "now-30m", to: params.get("to") || "now" };
    let range = { ...requested };
    let markers = [];
    let drawn = [];
    let dashboard = null;

    const view = {
      zone: timeZone(params.get("timezone")),
      markers: () => markers,
      zoom: (from, to) => setRange({ from: String(from), to: String(to) }),
      resetZoom: () => setRange(requested),
      goTo: (ms) => {
        if (window.top !== window) window.top.postMessage({ type: "rayhistory-go-to", at_ms: ms }, location.origin);
        else location.assign(`${sessionPath.replace(/@[^/]*$/, "")}@${ms}${location.pathname.slice(sessionPath.length)}${location.search}`);
      },
    };

    const query = (points) => {
      const chosen = new URLSearchParams([...params].filter(([name]) => name.startsWith("var-")));
      chosen.set("from", range.from);
      chosen.set("to", range.to);
      if (points) chosen.set("points", String(points));
      return chosen;
    };

    const fetchJson = async (path, chosen) => {
      const response = await fetch(`${sessionPath}/api/history/${path}?${chosen ?? ""}`);
      const body = await response.json().catch(() => null);
      if (!response.ok) throw new Error(body?.error?.message ?? `The server returned status ${response.status}.`);
      return body;
    };

    // Panels

    const notes = (data, kind) => [
      data.series_total > data.series.length && `${data.series.length} of ${data.series_total} series are shown`,
      data.series_dropped && `${data.series_dropped} series were not stored: a node had more than the limit`,
      data.gaps.length && `${kind === "timeseries" ? "Hatched" : "Missing"}: ${data.gaps[0].reason}`,
      data.gaps_total > data.gaps.length && `${data.gaps.length} of ${data.gaps_total} gaps are shown`,
      data.series.length && data.errors[0],
    ].filter(Boolean);

    const load = async (shown) => {
      if (shown.loading) {
        shown.again = true;
        return;
      }
      shown.loading = true;
      shown.body.setAttribute("aria-busy", "true");
      try {
        const points = Math.min(1000, Math.max(50, Math.round(shown.body.clientWidth / 2)));
        const data = await fetchJson(`charts/${uid}/panels/${shown.panel.id}`, query(points));
        shown.drawing?.destroy();
        shown.note.textContent = notes(data, shown.panel.kind).join(" · "); // before drawing: it takes room
        shown.note.hidden = !shown.note.textContent;
        shown.drawing = drawPanel(shown.body, shown.panel, data, view);
        shown.loaded = true;
      } catch (error) {
        shown.body.dataset.state = "error";
        shown.body.replaceChildren(element("p", "chart-message bad", error.message));
      }
      shown.body.removeAttribute("aria-busy");
      shown.loading = false;
      if (shown.again) {
        shown.again = false;
        load(shown);
      }
    };

    const visible = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const shown = drawn.find((each) => each.card === entry.target);
        if (!shown) continue;
        if (entry.isIntersecting) visible.add(shown);
        else visible.delete(shown);
        if (entry.isIntersecting && !shown.loaded && !shown.loading) load(shown);
      }
    }, { rootMargin: "200px" });

    const makePanel = (panel) => {
      const card = element("section", "chart-card");
      const title = element("h2", "", panel.title);
      const body = element("div", "chart-body");
      const note = element("p", "chart-note");
      note.hidden = true;
      if (panel.description) {
        const help = element("span", "chart-help", "i");
        help.title = panel.description;
        title.append(help);
      }
      card.dataset.panel = String(panel.id);
      if (!solo) {
        card.style.setProperty("--columns", String(panel.w));
        card.style.setProperty("--units", String(panel.h));
      }
      card.append(title, body, note);
      const shown = { panel, card, body, note, drawing: null, loaded: false, loading: false, again: false };
      drawn.push(shown);
      observer.observe(card);
      return card;
    };

    const makeRow = (row) => {
      const grid = element("div", "chart-grid");
      if (!row.title) {
        grid.append(...row.panels.map(makePanel));
        return grid;
      }
      const details = element("details", "chart-row");
      const fill = () => {
        if (details.open && !grid.childElementCount) grid.append(...row.panels.map(makePanel));
      };
      details.append(element("summary", "", row.title), grid);
      details.open = !row.collapsed;
      details.addEventListener("toggle", fill);
      fill();
      return details;
    };

    // Toolbar

    const setParam = (name, values) => {
      params.delete(name);
      for (const value of values) params.append(name, value);
      history.replaceState(null, "", `${location.pathname}?${params}`);
    };

    const reloadAll = () => {
      for (const shown of drawn) shown.loaded = false;
      for (const shown of visible) load(shown);
    };

    const setRange = (chosen) => {
      range = { ...chosen };
      setParam("from", [range.from]);
      setParam("to", [range.to]);
      renderToolbar();
      reloadAll();
    };

    const changeVariable = async (variable, values) => {
      setParam(`var-${variable.name}`, values);
      await loadDashboard();
      reloadAll();
    };

    const renderToolbar = () => {
      const whole = { from: String(dashboard.first_ms), to: String(dashboard.last_ms) };
      const options = [
        ...PRESETS.map(([name, from]) => [`Last ${name}`, `${from},now`]),
        ["Whole session", `${whole.from},${whole.to}`],
      ];
      const current = `${range.from},${range.to}`;
      if (!options.some(([, value]) => value === current)) {
        const [from, to] = [range.from, range.to].map((text) => (/^\d+$/.test(text) ? formatTime(Number(text), view.zone) : text));
        options.push([`${from} to ${to}`, current]);
      }
      const times = selectOf("Time range", options, current, (value) => {
        const [from, to] = value.split(",");
        setRange({ from, to });
      });
      const reset = element("button", "button small", "Reset zoom");
      reset.type = "button";
      reset.hidden = current === `${requested.from},${requested.to}`;
      reset.addEventListener("click", () => view.resetZoom());
      const shown = dashboard.variables.filter((variable) => !variable.hidden && (variable.options.length > 1 || variable.values[0] !== "$__all"));
      toolbar.replaceChildren(...shown.map((each) => variableSelect(each, (values) => changeVariable(each, values))), element("span", "grow"), reset, times);
    };

    const loadDashboard = async () => {
      dashboard = await fetchJson(`charts/${uid}`, query());
      if (!solo) renderToolbar();
    };

    const render = () => {
      if (solo) {
        const panel = dashboard.rows.flatMap((row) => row.panels).find(({ id }) => id === onlyPanel);
        page.replaceChildren(panel ? makePanel(panel) : element("p", "chart-message bad", `This dashboard has no panel ${onlyPanel}.`));
        return;
      }
      page.replaceChildren(...dashboard.rows.map(makeRow));
    };

    const loadMarkers = async () => {
      try {
        markers = (await fetchJson("chart_markers")).markers;
      } catch {
        return; // the session may not be indexed yet; charts need no index
      }
      for (const shown of drawn) shown.drawing?.redraw();
    };

    try {
      await loadDashboard();
    } catch (error) {
      page.replaceChildren(element("p", "chart-message bad", error.message));
      return;
    }
    if (!dashboard.last_ms) {
      page.replaceChildren(element("p", "chart-message", "This session has no stored metrics. Run a collector beside each node, with --metrics-interval above 0."));
      return;
    }
    render();
    loadMarkers();
    let resizing = 0;
    addEventListener("resize", () => {
      clearTimeout(resizing);
      resizing = setTimeout(() => drawn.forEach((shown) => shown.drawing?.resize()), RESIZE_DELAY_MS);
    });
    if (running) setInterval(() => !document.hidden && range.to.startsWith("now") && visible.forEach(load), MIN_REFRESH_MS);
  };

  document.addEventListener("DOMContentLoaded", start);
})();
