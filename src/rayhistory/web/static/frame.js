// The bar above Ray's frontend, which knows nothing of it: the address follows what is looked at inside, what is looked
// at follows the address, and a slider moves both to another moment.
"use strict";

(() => {
  const { remembered, remember, timeText } = window.rayHistory;
  const root = document.documentElement;
  const FOLDED_KEY = "rayhistory-bar";
  const REFRESH_MS = 10_000;
  const AGE_MS = 5_000;
  const SETTLE_MS = 250;
  const POLL_MS = 300;
  const LAST_SEEN = { running: "Up to", ended: "Ended", vanished: "Last seen" };
  const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];

  if (remembered(FOLDED_KEY) === "folded") root.classList.add("folded");

  const start = () => {
    const element = (id) => document.getElementById(id);
    const [bar, dashboard, slider, marks] = ["bar", "dashboard", "moment", "marks"].map(element);
    const { address } = bar.dataset;
    let course = { state: bar.dataset.state, started_ms: 0, last_ms: Number(bar.dataset.last), gaps: null, failures: [] };
    let loading = false;
    let known = location.href;
    let settling = 0;

    // Addresses

    const momentIn = (path) => {
      const found = path.startsWith(address) && /^@(\d+)\/$/.exec(path.slice(address.length));
      return found ? Number(found[1]) : null;
    };

    const path = (moment) => `${address}${moment === null ? "" : `@${moment}`}/`;

    const inside = () => {
      try {
        const { location } = dashboard.contentWindow;
        return location.pathname.startsWith(`${address}/`) || location.pathname.startsWith(`${address}@`) ? location : null;
      } catch {
        return null;
      }
    };

    const bareAddress = (moment, hash) => {
      const query = new URLSearchParams(location.search);
      query.set("bare", "1");
      return `${path(moment)}?${query}${hash}`;
    };

    const moment = () => {
      const asked = momentIn(location.pathname);
      return asked !== null && (!course.started_ms || asked < course.last_ms) ? asked : null;
    };

    // Both ways

    const load = (hash) => {
      loading = true;
      bar.setAttribute("aria-busy", "true");
      const target = bareAddress(momentIn(location.pathname), hash);
      if (inside()) dashboard.contentWindow.location.replace(target);
      else dashboard.src = target;
    };

    const followInside = () => {
      const there = inside();
      if (!there || loading || location.href !== known) return;
      const target = `${path(momentIn(there.pathname))}${location.search}${there.hash}`;
      if (target !== `${location.pathname}${location.search}${location.hash}`) history.replaceState(null, "", target);
      known = location.href;
      show();
    };

    const followAddress = () => {
      known = location.href;
      const there = inside();
      if (!there || momentIn(there.pathname) !== momentIn(location.pathname)) load(location.hash);
      else if (there.hash !== location.hash) there.replace(`${there.pathname}${there.search}${location.hash}`);
      show();
    };

    const go = (to) => {
      const target = to === null || to >= course.last_ms ? null : Math.max(Math.round(to), course.started_ms);
      const hash = (!loading && inside()?.hash) || location.hash;
      if (target === momentIn(location.pathname)) {
        show();
        return;
      }
      history.pushState(null, "", `${path(target)}${location.search}${hash}`);
      known = location.href;
      load(hash);
      show();
    };

    dashboard.addEventListener("load", () => {
      if (!inside()) return;
      loading = false;
      bar.removeAttribute("aria-busy");
      const page = dashboard.contentWindow;
      if (page.navigation) page.navigation.addEventListener("currententrychange", followInside);
      else page.setInterval(followInside, POLL_MS);
      followInside();
    });

    // A step back may also move what is inside: it is left alone until that has happened, and until then does not lead.
    addEventListener("popstate", () => setTimeout(followAddress, POLL_MS));

    // What the bar says

    const age = (then) => {
      const passed = Date.now() - then;
      const [name, unit] = UNITS.find(([, size]) => passed >= size) ?? ["s", 1_000];
      return passed < 1_000 ? "just now" : `${Math.floor(passed / unit)} ${name} ago`;
    };

    const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

    const failed = ({ tasks, actors, jobs }) =>
      [
        tasks && `${plural(tasks, "task")} failed`,
        actors && `${plural(actors, "actor")} died`,
        jobs && `${plural(jobs, "job")} failed`,
      ]
        .filter(Boolean)
        .join(", ");

    const text = (ms) => timeText(new Date(ms), { second: "2-digit" });

    const span = () => Math.max(course.last_ms - course.started_ms, 1);

    const near = (ms) =>
      course.failures
        .map((mark) => [Math.abs(mark.at_ms - ms), mark])
        .filter(([distance]) => distance <= span() / 150)
        .sort(([one], [other]) => one - other)[0]?.[1];

    const word = () => course.state[0].toUpperCase() + course.state.slice(1);

    const say = (id, words) => {
      if (element(id).textContent !== words) element(id).textContent = words;
    };

    const showMoment = (ms) => {
      const mark = near(ms);
      const words = [ms >= course.last_ms ? (course.state === "running" ? "Now" : "End") : text(ms), mark && failed(mark)];
      const output = element("moment-text");
      say("moment-text", words.filter(Boolean).join(" · "));
      output.style.setProperty("--place", (ms - course.started_ms) / span());
      slider.setAttribute("aria-valuetext", output.textContent);
    };

    const show = () => {
      const at = moment();
      root.classList.toggle("past", at !== null);
      if (at !== null) say("shown", `As of ${text(at)}`);
      else if (course.last_ms) say("shown", `${LAST_SEEN[course.state]} ${age(course.last_ms)}`);
      say("changed", at === null ? word() : `As of ${text(at)}`); // read aloud, so not with an age that always changes
      element("shown").title = course.last_ms ? `Known until ${text(course.last_ms)}` : "";
      element("at-end").setAttribute("aria-pressed", String(at === null));
      const from = at ?? course.last_ms + 1;
      element("failure-before").disabled = !course.failures.some((mark) => mark.at_ms < from);
      element("failure-after").disabled = !course.failures.some((mark) => mark.at_ms > from);
      if (!settling) {
        slider.value = at ?? course.last_ms;
        showMoment(Number(slider.value));
      }
    };

    const showCourse = () => {
      element("course").hidden = !(course.started_ms > 0 && course.last_ms > course.started_ms);
      slider.min = course.started_ms;
      slider.max = course.last_ms;
      marks.replaceChildren(
        ...course.failures.map((mark) => {
          const drawn = document.createElement("i");
          const place = (mark.at_ms - course.started_ms) / span();
          drawn.style.setProperty("--place", Math.min(Math.max(place, 0), 1));
          if (mark.jobs) drawn.className = "job";
          return drawn;
        }),
      );
      const chip = element("state");
      chip.className = `chip ${course.state}`;
      chip.lastElementChild.textContent = word();
      say("at-end", course.state === "running" ? "Now" : "End");
      if (course.gaps !== null) {
        element("gaps").hidden = course.gaps === 0;
        element("gaps").lastElementChild.textContent = plural(course.gaps, "gap");
      }
      show();
    };

    const look = async () => {
      const answer = document.hidden ? null : await fetch(`${address}/api/history/course`).catch(() => null);
      if (answer?.ok) {
        course = await answer.json();
        showCourse();
      }
      if (course.state === "running" || !course.started_ms) setTimeout(look, REFRESH_MS);
    };

    // The slider

    const settle = () => {
      clearTimeout(settling);
      settling = 0;
      const ms = Number(slider.value);
      go(near(ms)?.at_ms ?? ms);
    };

    const later = () => {
      clearTimeout(settling);
      settling = setTimeout(settle, SETTLE_MS);
      showMoment(Number(slider.value));
    };

    const beside = (direction) => {
      const from = moment() ?? course.last_ms + 1;
      const times = course.failures.map((mark) => mark.at_ms).filter((ms) => (ms - from) * direction > 0);
      if (times.length) go(direction > 0 ? Math.min(...times) : Math.max(...times));
    };

    const STEPS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 };

    slider.addEventListener("keydown", (event) => {
      if (!(event.key in STEPS) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      slider.value = Number(slider.value) + Math.max(1, Math.round(span() / 100)) * STEPS[event.key];
      later();
    });
    slider.addEventListener("input", () => {
      clearTimeout(settling);
      settling = -1;
      showMoment(near(Number(slider.value))?.at_ms ?? Number(slider.value));
    });
    slider.addEventListener("change", later);
    for (const [event, hidden] of [["pointerenter", false], ["focus", false], ["pointerleave", true], ["blur", true]]) {
      slider.addEventListener(event, () => {
        element("moment-text").hidden = hidden && document.activeElement !== slider;
      });
    }
    element("failure-before").addEventListener("click", () => beside(-1));
    element("failure-after").addEventListener("click", () => beside(1));
    element("at-end").addEventListener("click", () => go(null));

    // The rest of the bar

    const fold = (folded) => {
      root.classList.toggle("folded", folded);
      remember(FOLDED_KEY, folded ? "folded" : "");
      element(folded ? "unfold" : "fold").focus();
    };
    element("fold").addEventListener("click", () => fold(true));
    element("unfold").addEventListener("click", () => fold(false));

    element("dashboard-version")?.addEventListener("change", ({ target }) => {
      const query = new URLSearchParams(location.search);
      query.set("dashboard", target.value);
      location.assign(`${location.pathname}?${query}${location.hash}`);
    });

    setInterval(show, AGE_MS);
    load(location.hash);
    look();
  };

  document.addEventListener("DOMContentLoaded", start);
})();
