// Progressive enhancement: every page works without this file. It runs before the first paint, so that the saved theme
// applies without a flash.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // The Ray Dashboard stores its preferences under these keys in the same origin, so both share them.
  const THEME_KEY = "themeMode";
  const TIME_ZONE_KEY = "timezone";
  const REFRESH_MS = 30_000;
  const MAX_COMPARED = 10;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  const loadPreference = (key) => {
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  };

  const savePreference = (key, value) => {
    try {
      localStorage.setItem(key, value);
    } catch {
      // Without storage, the preference applies to this page only.
    }
  };

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);

  const applySavedTheme = () => {
    const theme = loadPreference(THEME_KEY);
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  };

  const setUpThemeToggle = () => {
    const toggle = document.getElementById("theme-toggle");
    const show = () => toggle?.setAttribute("aria-pressed", String(isDark()));
    if (toggle) toggle.hidden = false;
    show();
    toggle?.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      savePreference(THEME_KEY, root.dataset.theme);
      show();
    });
    prefersDark.addEventListener("change", show);
    addEventListener("storage", () => {
      applySavedTheme();
      show();
    });
  };

  const timeFormat = (options) => {
    const base = { hourCycle: "h23", ...options };
    try {
      return new Intl.DateTimeFormat("en-CA", { ...base, timeZone: loadPreference(TIME_ZONE_KEY) || undefined });
    } catch {
      return new Intl.DateTimeFormat("en-CA", base);
    }
  };

  const DATE_AND_MINUTES = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit" };

  const formatTime = (when, options = {}) => {
    const parts = {};
    for (const { type, value } of timeFormat({ ...DATE_AND_MINUTES, ...options }).formatToParts(when)) parts[type] = value;
    const seconds = parts.second ? `:${parts.second}` : "";
    return `${parts.year}-${parts.month}-${parts.day} ${parts.hour}:${parts.minute}${seconds}`;
  };

  const zoneName = () =>
    timeFormat({ timeZoneName: "short" }).formatToParts().find((part) => part.type === "timeZoneName")?.value ?? "";

  const showLocalTimes = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      if (Number.isNaN(Date.parse(time.dateTime))) continue;
      time.textContent = formatTime(new Date(time.dateTime), time.closest(".to-the-second") ? { second: "2-digit" } : {});
    }
    const header = document.getElementById("time-zone");
    if (header) header.textContent = zoneName();
  };

  const openLinks = () => [...document.querySelectorAll(".session .open a")];

  const focusRow = (position) => {
    const links = openLinks();
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
      const links = openLinks();
      if (!links.length) return;
      const current = links.indexOf(event.target.closest?.(".session")?.querySelector(".open a"));
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
    if (!row || event.target.closest("a, button, input, summary, .menu") || String(getSelection())) return;
    const { href } = row.querySelector(".open a");
    if (event.ctrlKey || event.metaKey) open(href, "_blank", "noopener");
    else location.assign(href);
  };

  const refreshWhileRunning = async () => {
    const shown = document.querySelector("#sessions[data-live]");
    if (!shown || document.hidden || String(getSelection()) || shown.querySelector(".menu[open], :checked")) return;
    const focused = document.activeElement?.closest(".session .open a")?.getAttribute("href");
    const response = await fetch(location.href, { headers: { accept: "text/html" } }).catch(() => null);
    if (!response?.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const updated = page.getElementById("sessions");
    if (!updated) return;
    shown.replaceWith(document.adoptNode(updated));
    const count = page.getElementById("result-count")?.textContent;
    const countShown = document.getElementById("result-count");
    if (count && countShown && countShown.textContent !== count) countShown.textContent = count;
    showLocalTimes();
    if (focused) openLinks().find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  };

  const showWhetherComparable = () => {
    const button = document.getElementById("compare-selected");
    const selected = document.querySelectorAll(".compared-box:checked").length;
    if (button) button.disabled = selected < 2 || selected > MAX_COMPARED;
  };

  // If the URL has a fragment, browsers treat a meta refresh as navigation within the page and do not reload.
  const reloadDespiteFragment = () => {
    const refresh = document.querySelector('meta[http-equiv="refresh"]');
    if (refresh && location.hash) setTimeout(() => location.reload(), Number(refresh.content) * 1000);
  };

  // Used by frame.js.
  window.rayHistory = { loadPreference, savePreference, formatTime, zoneName };

  if (window !== window.parent) root.classList.add("in-frame");
  applySavedTheme();
  document.addEventListener("DOMContentLoaded", () => {
    setUpThemeToggle();
    showLocalTimes();
    reloadDespiteFragment();
    document.addEventListener("keydown", onKey);
    document.addEventListener("click", onClick);
    document.addEventListener("change", showWhetherComparable);
    showWhetherComparable();
    for (const select of document.querySelectorAll(".filters select")) {
      select.addEventListener("change", () => select.form.requestSubmit());
    }
    setInterval(refreshWhileRunning, REFRESH_MS);
  });
  // After "Back", browsers restore the ticks.
  addEventListener("pageshow", showWhetherComparable);
})();
