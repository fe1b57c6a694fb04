// Searches stream: hits appear as they are found, with progress, a histogram, and a button that stops the search.
// Without this script, the form loads a page. All text of hits is untrusted and only ever set as text.
"use strict";

(() => {
  const form = document.getElementById("log-search");
  const result = document.getElementById("search-result");
  const stop = document.getElementById("search-stop");
  if (!form || !result) return;

  const MAX_SHOWN = 1000;
  const SVG = "http://www.w3.org/2000/svg";
  const CONTROL_CODES = /\u001b\[[\d;]{0,64}[A-Za-z]|\u001b.?|[\0-\u0008\u000b-\u001f\u007f]/gu; // as web/ansi.py
  let running = null;

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const time = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 19);
  const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
  const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

  function marked(hit) {
    const parts = [];
    const blanked = hit.text.replace(CONTROL_CODES, (code) => "\0".repeat(Array.from(code).length));
    const characters = Array.from(blanked); // matches count characters, not units of UTF-16
    const shown = (start, end) => characters.slice(start, end).filter((each) => each !== "\0").join("");
    let position = 0;
    for (const [start, end] of hit.matches) {
      parts.push(shown(position, start), element("mark", {}, shown(start, end)));
      position = end;
    }
    parts.push(shown(position));
    return parts;
  }

  // The log viewer links back to the search.
  function foundBySearch(hitUrl) {
    const url = new URL(hitUrl, location.href);
    const search = new URLSearchParams(location.search);
    for (const name of ["cursor", "counts"]) search.delete(name);
    for (const [name, value] of [...search]) if (!value) search.delete(name);
    url.searchParams.set(form.dataset.counts ? "search" : "search_all", search);
    return url.pathname + url.search + url.hash;
  }

  function shownHit(hit) {
    const facts = [`${hit.approximate ? "about " : ""}${time(hit.at_ms)} UTC`, `node ${hit.node_id.slice(0, 8)}`];
    if (hit.session) facts.unshift(`${hit.namespace}/${hit.cluster}`);
    if (hit.task_id) facts.push(`task ${hit.task_id.slice(0, 16)}${hit.attempt ? ` (attempt ${hit.attempt})` : ""}`);
    if (hit.actor_id) facts.push(`actor ${hit.actor_id.slice(0, 16)}`);
    const link = element("a", { class: "mono", href: foundBySearch(hit.url) }, hit.line === null ? hit.file : `${hit.file}:${hit.line}`);
    const place = element("p", { class: "hit-place wrap" }, link, " ", element("span", { class: "muted" }, facts.join(" · ")));
    return element("li", { class: "hit" }, place, element("pre", { class: "log-lines wrapped" }, ...marked(hit)));
  }

  function histogram({ step_ms: step, buckets }) {
    const drawing = document.createElementNS(SVG, "svg");
    const drawn = { class: "histogram", viewBox: "0 0 1200 60", preserveAspectRatio: "none", role: "img" };
    for (const [key, value] of Object.entries(drawn)) drawing.setAttribute(key, value);
    drawing.setAttribute("aria-label", "Matching lines over time");
    const first = buckets[0][0];
    const width = 1200 / ((buckets.at(-1)[0] - first) / step + 1);
    const most = Math.max(...buckets.map((each) => each[1]));
    for (const [start, hits] of buckets) {
      const url = new URL(location.href);
      url.searchParams.set("from", start);
      url.searchParams.set("to", start + step);
      const link = document.createElementNS(SVG, "a");
      const title = document.createElementNS(SVG, "title");
      const bar = document.createElementNS(SVG, "rect");
      const height = Math.max(2, (hits / most) * 60);
      const box = { x: ((start - first) / step) * width, y: 60 - height, width: Math.max(1, width - 1), height };
      for (const [key, value] of Object.entries(box)) bar.setAttribute(key, value);
      link.setAttribute("href", url.search);
      title.textContent = `${time(start)} UTC: ${hits.toLocaleString("en")}`;
      link.append(title, bar);
      drawing.append(link);
    }
    return drawing;
  }

  function shownCounts(counts) {
    if (!counts?.histogram.buckets.length) return [];
    const rows = counts.files.map((each) =>
      element("tr", {}, element("td", { class: "mono wrap" }, each.file), element("td", { class: "mono" }, each.node_id.slice(0, 8)),
        element("td", {}, each.hits.toLocaleString("en"))));
    const places = `${count(counts.files.length, "file")} on ${count(counts.nodes.length, "node")}${counts.complete ? "" : " so far"}`;
    const table = element("table", { class: "count-table" }, element("tbody", {}, ...rows));
    return [histogram(counts.histogram), element("details", {}, element("summary", {}, places), table)];
  }

  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (part) yield JSON.parse(part);
    }
  }

  async function search(params) {
    running?.abort();
    const own = (running = new AbortController());
    const status = element("p", { class: "muted", role: "status", id: "search-status" }, "Searching…");
    const counts = element("section", { class: "hit-counts", "aria-label": "Matching lines over time" });
    const hits = element("ol", { class: "hits" });
    result.replaceChildren(status, counts, hits);
    stop.hidden = false;
    const streamed = new URLSearchParams(params);
    if (form.dataset.counts && !params.has("cursor")) streamed.set("counts", "1");
    try {
      const response = await fetch(`${form.dataset.api}?${streamed}`, { headers: { Accept: "application/x-ndjson" }, signal: own.signal });
      if (!response.ok) throw new Error((await response.json()).error.message);
      let end = null;
      for await (const each of lines(response)) {
        if (each.error) throw new Error(each.error.message ?? each.error.error?.message ?? "the search failed");
        if (each.progress) {
          const { scanned_bytes: scanned, total_bytes: total, hits: found } = each.progress;
          status.textContent = `${count(found, "matching line")} so far, ${megabytes(scanned)} of ${megabytes(total)} searched`;
          counts.replaceChildren(...shownCounts(each.progress.counts));
        } else if ("complete" in each) end = each;
        else if (hits.childElementCount < MAX_SHOWN) hits.append(shownHit(each));
      }
      if (!end) throw new Error("the connection was lost before the search ended");
      const total = end.total === null ? `${count(hits.childElementCount, "line")} shown` : count(end.total, "matching line");
      status.textContent = `${total}, ${megabytes(end.scanned_bytes)} searched`;
      counts.replaceChildren(...shownCounts(end.counts));
      if (end.next) {
        params.set("cursor", end.next);
        result.append(element("p", {}, element("a", { class: "button", rel: "next", href: `?${params}` }, "More lines")));
      }
    } catch (error) {
      if (own.signal.aborted) status.textContent = `Stopped. ${status.textContent}`;
      else result.prepend(element("p", { class: "notice", role: "alert" }, `The search failed: ${error.message}`));
    } finally {
      if (running === own) stop.hidden = true;
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const params = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) params.append(name, value);
    history.pushState(null, "", `?${params}`);
    search(params);
  });
  stop.addEventListener("click", () => running?.abort());
  addEventListener("popstate", () => location.reload());

  // Next and previous hit, by the keys n and p.
  addEventListener("keydown", (event) => {
    if (!["n", "p"].includes(event.key) || event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey) return;
    const all = [...result.querySelectorAll(".hit")];
    const current = all.findIndex((each) => each.classList.contains("current"));
    const next = all[event.key === "n" ? current + 1 : current - 1];
    if (!next) return;
    all[current]?.classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest" });
    next.querySelector("a").focus({ preventScroll: true });
  });
})();
