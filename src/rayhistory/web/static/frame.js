// The bar above Ray's frontend, which runs unmodified in an iframe. The page's URL mirrors the URL inside the iframe and
// the other way round; the slider shows the session as of another time.
"use strict";

(() => {
  const { loadPreference, savePreference, formatTime, zoneName } = window.rayHistory;
  const root = document.documentElement;
  const BAR_KEY = "rayhistory-bar";
  const COLLAPSED = "collapsed";
  const REFRESH_MS = 10_000;
  const AGE_REFRESH_MS = 5_000;
  const SLIDER_DELAY_MS = 250;
  const POLL_MS = 300;
  const ANNOUNCE_MS = 1_000;
  const THUMB_RADIUS = 7;
  const MIN_ZOOM_MS = 200;
  const DATA_AGE_LABELS = { running: "Data as of", ended: "Ended", vanished: "Last data" };
  const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

  if (loadPreference(BAR_KEY) === COLLAPSED) root.classList.add("bar-collapsed");

  // A link that left the iframe has ?bare=1; the page's own URL never does.
  const withoutBare = new URL(location.href);
  if (withoutBare.searchParams.has("bare")) {
    withoutBare.searchParams.delete("bare");
    history.replaceState(null, "", withoutBare);
  }

  const start = () => {
    const element = (id) => document.getElementById(id);
    const [bar, dashboard, slider, markers] = ["bar", "dashboard", "as-of", "markers"].map(element);
    const { sessionPath } = bar.dataset;
    let overview = {
      state: bar.dataset.state,
      started_ms: 0,
      last_ms: Number(bar.dataset.lastMs),
      gaps: null,
      failures: [],
    };
    let verdict = null;
    let findings = [];
    const namesOfTask = {};
    let loading = false;
    let currentUrl = location.href;
    let sliderTimer = 0;
    let zoom = null; // { from, to }: the part of the session that the slider covers; null is all of it
    let jobStarts = null;
    const siteTitle = document.title;

    // URLs

    const asOfIn = (path) => {
      const match = path.startsWith(sessionPath) && /^@(\d+)\/$/.exec(path.slice(sessionPath.length));
      return match ? Number(match[1]) : null;
    };

    const pathAsOf = (asOf) => `${sessionPath}${asOf === null ? "" : `@${asOf}`}/`;

    const frameLocation = () => {
      try {
        const { location } = dashboard.contentWindow;
        const inSession = [`${sessionPath}/`, `${sessionPath}@`].some((prefix) => location.pathname.startsWith(prefix));
        return inSession ? location : null;
      } catch {
        return null;
      }
    };

    const frameUrl = (asOf, hash) => {
      const query = new URLSearchParams(location.search);
      query.set("bare", "1");
      return `${pathAsOf(asOf)}?${query}${hash}`;
    };

    const shownAsOf = () => {
      const requested = asOfIn(location.pathname);
      return requested !== null && (!overview.started_ms || requested < overview.last_ms) ? requested : null;
    };

    // Synchronize the page and the iframe

    const load = (hash) => {
      loading = true;
      bar.setAttribute("aria-busy", "true");
      const target = frameUrl(asOfIn(location.pathname), hash);
      if (frameLocation()) dashboard.contentWindow.location.replace(target);
      else dashboard.src = target;
    };

    const followFrame = () => {
      const inside = frameLocation();
      if (!inside || loading || location.href !== currentUrl) return;
      const target = `${pathAsOf(asOfIn(inside.pathname))}${location.search}${inside.hash}`;
      if (target !== `${location.pathname}${location.search}${location.hash}`) history.replaceState(null, "", target);
      currentUrl = location.href;
      render();
    };

    // Ray's frontend misses a change of its URL while it still renders the page before, for which a slow machine takes
    // a second. It ignores an event about the page that it shows.
    const announceAgain = (page) => {
      const announce = () => page.dispatchEvent(new PopStateEvent("popstate", { state: page.history.state }));
      if (page.requestIdleCallback) page.requestIdleCallback(announce);
      else page.setTimeout(announce, ANNOUNCE_MS);
    };

    const followPage = () => {
      currentUrl = location.href;
      const inside = frameLocation();
      if (!inside || asOfIn(inside.pathname) !== asOfIn(location.pathname)) load(location.hash);
      else if (inside.hash !== location.hash) {
        inside.replace(`${inside.pathname}${inside.search}${location.hash}`);
        announceAgain(dashboard.contentWindow);
      }
      render();
    };

    const goTo = (time) => {
      const target = time === null || time >= overview.last_ms ? null : Math.max(Math.round(time), overview.started_ms);
      const hash = (!loading && frameLocation()?.hash) || location.hash;
      if (target === asOfIn(location.pathname)) {
        render();
        return;
      }
      history.pushState(null, "", `${pathAsOf(target)}${location.search}${hash}`);
      currentUrl = location.href;
      load(hash);
      render();
    };

    dashboard.addEventListener("load", () => {
      if (!frameLocation()) return;
      loading = false;
      bar.removeAttribute("aria-busy");
      const page = dashboard.contentWindow;
      if (page.navigation) page.navigation.addEventListener("currententrychange", followFrame);
      else page.setInterval(followFrame, POLL_MS);
      followFrame();
    });

    // Going back may also navigate the iframe. Wait until it has, or its old URL would overwrite the page's.
    addEventListener("popstate", () => setTimeout(followPage, POLL_MS));

    // Texts of the bar

    const formatAge = (then) => {
      const age = Date.now() - then;
      const [name, unit] = UNITS.find(([, size]) => age >= size) ?? ["s", 1_000];
      return age < 1_000 ? "just now" : `${Math.floor(age / unit)} ${name} ago`;
    };

    const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

    const describeFailures = ({ tasks, actors, jobs, names = [] }) => {
      const counts = [
        tasks && `${plural(tasks, "task")} failed`,
        actors && `${plural(actors, "actor")} died`,
        jobs && `${plural(jobs, "job")} failed`,
      ];
      const more = tasks + jobs > names.length && names.length ? ", …" : "";
      return `${counts.filter(Boolean).join(", ")}${names.length ? `: ${names.join(", ")}${more}` : ""}`;
    };

    const formatSeconds = (ms) => formatTime(new Date(ms), { second: "2-digit" });

    const shownRange = () => zoom ?? { from: overview.started_ms, to: overview.last_ms };

    const duration = () => Math.max(shownRange().to - shownRange().from, 1);

    const positionOf = (ms) => (ms - shownRange().from) / duration();

    const formatEnd = (ms) => (duration() > 86_400_000 ? formatTime(new Date(ms)) : formatSeconds(ms).slice(11));

    const markerNear = (ms) =>
      overview.failures
        .map((marker) => [Math.abs(marker.at_ms - ms), marker])
        .filter(([distance]) => distance <= duration() / 150)
        .sort(([one], [other]) => one - other)[0]?.[1];

    const stateLabel = () => overview.state[0].toUpperCase() + overview.state.slice(1);

    const isRunning = () => overview.state === "running";

    const setText = (id, text) => {
      if (element(id).textContent !== text) element(id).textContent = text;
    };

    // Findings of the diagnosis, which is built after the tables

    const findingAt = (ms) =>
      findings.find(({ first_ms, last_ms, root }) => root && first_ms !== null && ms >= first_ms - 1000 && ms <= last_ms + 1000);

    const findingAbout = (names) => {
      const about = findings.filter(({ subjects, evidence }) => names.some((name) => subjects.includes(name) || evidence.some(({ id }) => id === name)));
      return about.length === 1 ? about[0] : undefined;
    };

    // A failed task is in the group of its function and error, or died with its worker, actor or node.
    const loadTask = async (id) => {
      namesOfTask[id] = [];
      const columns = "job_id,error_type,func_or_class_name,worker_id,actor_id,node_id,state";
      const response = await fetch(`${sessionPath}/api/history/rows/tasks?where=task_id=${encodeURIComponent(id)}&columns=${columns}&limit=100`).catch(() => null);
      const rows = response?.ok ? (await response.json()).rows : [];
      const task = rows.find(({ state }) => state === "FAILED");
      if (!task) return;
      const group = `${task.job_id} ${task.error_type} ${task.func_or_class_name}`;
      namesOfTask[id] = [[task.worker_id], [task.actor_id], [group], [task.error_type === "NODE_DIED" ? task.node_id : null]];
      render();
    };

    const findingOfPage = () => {
      const [, page, id] = [...location.hash.matchAll(/\b(tasks|actors|nodes|jobs)\/([^/?]+)/g)].pop() ?? [];
      if (!id) return undefined;
      const found = findingAbout([decoded(id)]);
      if (found || page !== "tasks") return found;
      if (!namesOfTask[id]) loadTask(id);
      return namesOfTask[id].map(findingAbout).find(Boolean);
    };

    const renderVerdict = () => {
      const link = element("verdict");
      const finding = findingOfPage();
      const headline = finding?.headline ?? verdict?.headline ?? "";
      link.classList.toggle("quiet", !headline);
      link.title = headline || link.dataset.hint;
      link.href = `${sessionPath}/diagnosis${finding ? `#finding-${findings.indexOf(finding)}` : ""}`;
      const text = headline || "Diagnosis";
      if (link.lastElementChild.textContent !== text) link.lastElementChild.textContent = text;
    };

    const loadDiagnosis = async () => {
      const response = await fetch(`${sessionPath}/api/history/diagnosis`).catch(() => null);
      if (!response?.ok) return;
      ({ verdict, findings } = await response.json());
      render();
    };

    const renderSlider = (ms) => {
      const marker = markerNear(ms);
      const time = ms < overview.last_ms ? formatSeconds(ms) : isRunning() ? "Now" : "End of session";
      const label = element("as-of-label");
      setText("as-of-label", [time, marker && describeFailures(marker), marker && findingAt(marker.at_ms)?.headline].filter(Boolean).join(" · "));
      label.style.setProperty("--position", positionOf(ms));
      return label.textContent;
    };

    const renderValue = (ms) => slider.setAttribute("aria-valuetext", renderSlider(ms));

    const timeAt = (event) => {
      const { left, width } = slider.getBoundingClientRect();
      const share = (event.clientX - left - THUMB_RADIUS) / Math.max(width - 2 * THUMB_RADIUS, 1);
      return Math.round(shownRange().from + Math.min(Math.max(share, 0), 1) * duration());
    };

    const render = () => {
      const asOf = shownAsOf();
      if (findings.length) renderVerdict();
      root.classList.toggle("past", asOf !== null);
      if (asOf !== null) setText("data-age", `As of ${formatSeconds(asOf)}`);
      else if (overview.last_ms) setText("data-age", `${DATA_AGE_LABELS[overview.state]} ${formatAge(overview.last_ms)}`);
      // Screen readers announce this text, so it has no age, which would change all the time.
      setText("announcement", asOf === null ? stateLabel() : `As of ${formatSeconds(asOf)}`);
      element("data-age").title = overview.last_ms ? `Last data: ${formatSeconds(overview.last_ms)}` : "";
      element("latest").setAttribute("aria-disabled", String(asOf === null));
      const from = asOf ?? overview.last_ms + 1;
      element("previous-failure").disabled = !overview.failures.some((marker) => marker.at_ms < from);
      element("next-failure").disabled = !overview.failures.some((marker) => marker.at_ms > from);
      if (!sliderTimer) {
        slider.value = asOf ?? overview.last_ms;
        renderValue(Number(slider.value));
      }
      document.title = `${pageTitle(location.hash)} · ${siteTitle}`;
      renderNote(asOf);
    };

    // The page inside the iframe: its title, and what its reader should know

    const decoded = (text) => {
      try {
        return decodeURIComponent(text);
      } catch {
        return text;
      }
    };

    const pageTitle = (hash) => {
      const [page, id] = hash.replace(/^#\/?/, "").split("?")[0].split("/").map(decoded);
      const name = page ? page[0].toUpperCase() + page.slice(1) : "Overview";
      return id && page.endsWith("s") ? `${name.slice(0, -1)} ${id}` : name;
    };

    const loadJobStarts = async () => {
      jobStarts = {};
      const response = await fetch(`${sessionPath}/api/history/rows/jobs?columns=job_id,submission_id,start_time&limit=10000`).catch(() => null);
      if (!response?.ok) return;
      for (const job of (await response.json()).rows) {
        for (const id of [job.job_id, job.submission_id]) if (id) jobStarts[id] = job.start_time;
      }
      render();
    };

    const renderNote = (asOf) => {
      const job = /^#\/jobs\/([^/?]+)/.exec(location.hash)?.[1];
      if (asOf !== null && job && !jobStarts) loadJobStarts();
      const start = asOf !== null && job && jobStarts?.[decoded(job)];
      let text = "";
      if (start > asOf) text = "This job had not started at this time.";
      else if (!isRunning() && /^#\/cluster/.test(location.hash)) {
        text = "This cluster is gone. Nodes and workers are shown as they were at the selected time, by default at its end.";
      }
      element("page-note").hidden = !text;
      setText("page-note-text", text);
      element("page-note-start").hidden = !(start > asOf);
      element("page-note-start").dataset.startMs = start || "";
    };

    const renderOverview = () => {
      element("timeline").hidden = !(overview.started_ms > 0 && overview.last_ms > overview.started_ms);
      slider.min = shownRange().from;
      slider.max = shownRange().to;
      setText("range-start", formatEnd(shownRange().from));
      setText("range-end", `${formatEnd(shownRange().to)} ${zoneName()}`);
      element("timeline").classList.toggle("zoomed", zoom !== null);
      markers.replaceChildren(
        ...overview.failures.filter(({ at_ms }) => positionOf(at_ms) >= 0 && positionOf(at_ms) <= 1).map((marker) => {
          const line = document.createElement("i");
          line.style.setProperty("--position", positionOf(marker.at_ms));
          if (marker.jobs) line.className = "job";
          return line;
        }),
      );
      const chip = element("state");
      chip.className = `chip ${overview.state}`;
      chip.lastElementChild.textContent = stateLabel();
      setText("latest", isRunning() ? "Back to now" : "Jump to end");
      if (overview.gaps !== null) {
        element("gaps").hidden = overview.gaps === 0;
        element("gaps").lastElementChild.textContent = plural(overview.gaps, "gap");
      }
      render();
    };

    const refresh = async () => {
      const response = document.hidden ? null : await fetch(`${sessionPath}/api/history/overview`).catch(() => null);
      if (response?.ok) {
        overview = await response.json();
        renderOverview();
        if (overview.failures.length) loadDiagnosis();
      }
      if (isRunning() || !overview.started_ms) setTimeout(refresh, REFRESH_MS);
    };

    // The slider

    const applySlider = () => {
      clearTimeout(sliderTimer);
      sliderTimer = 0;
      const ms = Number(slider.value);
      goTo(markerNear(ms)?.at_ms ?? ms);
    };

    const scheduleSlider = () => {
      clearTimeout(sliderTimer);
      sliderTimer = setTimeout(applySlider, SLIDER_DELAY_MS);
      renderValue(Number(slider.value));
    };

    const goToFailure = (direction) => {
      const from = shownAsOf() ?? overview.last_ms + 1;
      const times = overview.failures.map((marker) => marker.at_ms).filter((ms) => (ms - from) * direction > 0);
      if (times.length) goTo(direction > 0 ? Math.min(...times) : Math.max(...times));
    };

    const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

    const zoomTo = (factor, center) => {
      const whole = { from: overview.started_ms, to: overview.last_ms };
      const size = Math.max(duration() * factor, MIN_ZOOM_MS);
      if (size >= whole.to - whole.from) {
        zoom = null;
      } else {
        const share = Math.min(Math.max(positionOf(center), 0), 1);
        const from = Math.round(Math.min(Math.max(center - share * size, whole.from), whole.to - size));
        zoom = { from, to: Math.round(from + size) };
      }
      renderOverview();
    };

    const ZOOMS = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity };

    slider.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoomTo(event.deltaY < 0 ? 0.8 : 1.25, timeAt(event));
      renderSlider(timeAt(event));
    }, { passive: false });
    slider.addEventListener("dblclick", () => zoomTo(Infinity, overview.started_ms));
    slider.addEventListener("pointermove", (event) => {
      const ms = timeAt(event);
      renderSlider(markerNear(ms)?.at_ms ?? ms);
    });

    slider.addEventListener("keydown", (event) => {
      if (event.key in ZOOMS && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        zoomTo(ZOOMS[event.key], Number(slider.value));
        return;
      }
      if (!(event.key in STEPS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      slider.value = Number(slider.value) + Math.max(1, Math.round(duration() / 100)) * STEPS[event.key];
      scheduleSlider();
    });
    slider.addEventListener("input", () => {
      clearTimeout(sliderTimer);
      sliderTimer = -1;
      renderValue(markerNear(Number(slider.value))?.at_ms ?? Number(slider.value));
    });
    slider.addEventListener("change", scheduleSlider);
    for (const [event, hidden] of [["pointerenter", false], ["focus", false], ["pointerleave", true], ["blur", true]]) {
      slider.addEventListener(event, () => {
        element("as-of-label").hidden = hidden && document.activeElement !== slider;
        if (hidden) renderSlider(Number(slider.value));
      });
    }
    element("previous-failure").addEventListener("click", () => goToFailure(-1));
    element("next-failure").addEventListener("click", () => goToFailure(1));
    element("latest").addEventListener("click", () => goTo(null));
    element("page-note-start").addEventListener("click", ({ target }) => goTo(Number(target.dataset.startMs) + 1));

    // A click on a marker of a chart moves the slider there.
    addEventListener("message", ({ origin, data }) => {
      if (origin === location.origin && data?.type === "rayhistory-go-to" && Number.isFinite(data.at_ms)) goTo(data.at_ms);
    });

    // Hide and show the bar, switch the dashboard version

    const setCollapsed = (collapsed) => {
      root.classList.toggle("bar-collapsed", collapsed);
      savePreference(BAR_KEY, collapsed ? COLLAPSED : "");
      element(collapsed ? "show-bar" : "hide-bar").focus();
    };
    element("hide-bar").addEventListener("click", () => setCollapsed(true));
    element("show-bar").addEventListener("click", () => setCollapsed(false));

    element("dashboard-version")?.addEventListener("change", ({ target }) => {
      const query = new URLSearchParams(location.search);
      query.set("dashboard", target.value);
      location.assign(`${location.pathname}?${query}${location.hash}`);
    });

    setInterval(render, AGE_REFRESH_MS);
    load(location.hash);
    refresh();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
