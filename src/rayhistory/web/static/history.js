// Comfort only: every page works without this file. Loaded before the first paint, so that a chosen theme never flashes.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Ray's dashboard keeps its choices under these names in the same origin: what is chosen there holds here, and back.
  const THEME_KEY = "themeMode";
  const TIME_ZONE_KEY = "timezone";
  const REFRESH_MS = 30_000;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  const remembered = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };

  const remember = (key, value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      // Storage may be switched off: the choice then holds for this page.
    }
  };

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  const useRememberedTheme = () => {
    const theme = remembered(THEME_KEY);
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  };

  const setUpThemeToggle = () => {
    const toggle = document.getElementById("theme-toggle");
    const show = () => toggle?.setAttribute("aria-pressed", String(isDark()));
    if (toggle) toggle.hidden = false;
    show();
    toggle?.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(THEME_KEY, root.dataset.theme);
      show();
    });
    prefersDark.addEventListener("change", show);
    addEventListener("storage", () => {
      useRememberedTheme();
      show();
    });
  };

  const timeFormat = (options) => {
    const base = { hourCycle: "h23", ...options };
    try {
      return new Intl.DateTimeFormat("en-CA", { ...base, timeZone: remembered(TIME_ZONE_KEY) || undefined });
    } catch {
      return new Intl.DateTimeFormat("en-CA", base);
    }
  };

  const MINUTES = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit" };

  const timeText = (when, options = {}) => {
    const parts = {};
    for (const { type, value } of timeFormat({ ...MINUTES, ...options }).formatToParts(when)) parts[type] = value;
    const seconds = parts.second ? `:${parts.second}` : "";
    return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}${seconds}`;
  };

  const showLocalTimes = () => {
    for (const time of document.querySelectorAll("time[datetime]")) time.textContent = timeText(new Date(time.dateTime));
    const header = document.getElementById("time-zone");
    const zone = timeFormat({ timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName");
    if (header && zone) header.textContent = zone.value;
  };

  const enterLinks = () => [...document.querySelectorAll(".session .enter a")];

  const focusRow = (position) => {
    const links = enterLinks();
    const link = links[Math.min(Math.max(position, 0), links.length - 1)];
    if (!link) return;
    link.focus();
    link.closest("tr").scrollIntoView({ block: "nearest" });
  };

  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const search = document.getElementById("search");
    const inSearch = search && event.target === search;
    const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (event.key === "/" && search && !typing) {
      search.focus();
      search.select();
    } else if (event.key === "Escape" && document.querySelector(".menu[open]")) {
      closeMenus(null);
    } else if (event.key === "Escape" && inSearch && search.value === "") {
      search.blur();
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (inSearch || !typing)) {
      const links = enterLinks();
      if (!links.length) return;
      const current = links.indexOf(event.target.closest?.(".session")?.querySelector(".enter a"));
      if (event.key === "ArrowUp" && current === -1) return;
      if (event.key === "ArrowUp" && current === 0) search?.focus();
      else focusRow(current + (event.key === "ArrowDown" ? 1 : -1));
    } else {
      return;
    }
    event.preventDefault();
  };

  const closeMenus = (except) => {
    for (const menu of document.querySelectorAll(".menu[open]")) if (menu !== except) menu.open = false;
  };

  const onClick = (event) => {
    closeMenus(event.target.closest(".menu"));
    const row = event.target.closest(".session");
    if (!row || event.target.closest("a, button, summary, .menu") || String(getSelection())) return;
    const { href } = row.querySelector(".enter a");
    if (event.ctrlKey || event.metaKey) open(href, "_blank", "noopener");
    else location.assign(href);
  };

  const refreshWhileRunning = async () => {
    const shown = document.querySelector("#sessions[data-live]");
    if (!shown || document.hidden || String(getSelection()) || shown.querySelector(".menu[open]")) return;
    const focused = document.activeElement?.closest(".session .enter a")?.getAttribute("href");
    const answer = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (!answer?.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("sessions");
    if (!fresh) return;
    shown.replaceWith(document.adoptNode(fresh));
    const count = page.getElementById("result-count")?.textContent;
    const countShown = document.getElementById("result-count");
    if (count && countShown && countShown.textContent !== count) countShown.textContent = count;
    showLocalTimes();
    if (focused) enterLinks().find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  };

  // With a deep link's fragment in the address, a browser takes the meta refresh for a jump within the page.
  const continueDespiteFragment = () => {
    const refresh = document.querySelector('meta[http-equiv="refresh"]');
    if (refresh && location.hash) setTimeout(() => location.reload(), Number(refresh.content) * 1000);
  };

  // For the page around a dashboard (frame.js).
  window.rayHistory = { remembered, remember, timeText };

  if (window !== window.parent) root.classList.add("framed");
  useRememberedTheme();
  document.addEventListener("DOMContentLoaded", () => {
    setUpThemeToggle();
    showLocalTimes();
    continueDespiteFragment();
    document.addEventListener("keydown", onKey);
    document.addEventListener("click", onClick);
    for (const select of document.querySelectorAll(".filters select")) {
      select.addEventListener("change", () => select.form.requestSubmit());
    }
    setInterval(refreshWhileRunning, REFRESH_MS);
  });
})();
