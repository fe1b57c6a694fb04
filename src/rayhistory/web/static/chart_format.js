// Values, times and colors of charts.
"use strict";

window.rayHistoryCharts = (() => {
  const PALETTE = [
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0", "#37872d", "#fade2a",
    "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477", "#b7dbab", "#f4d598", "#70dbed", "#f9ba8f",
  ];
  const NAMED_COLORS = { red: "#f2495c", green: "#73bf69", blue: "#5794f2", yellow: "#fade2a", orange: "#ff9830", purple: "#b877d9" };
  const IEC = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const THOUSANDS = ["", " K", " Mil", " Bil", " Tri"];

  const trim = (number, digits = 3) => {
    if (number === 0) return "0";
    const size = Math.abs(number);
    if (size >= 1e15 || size < 1e-6) return number.toExponential(2);
    return String(Number(number.toPrecision(size >= 100 ? Math.max(digits, Math.ceil(Math.log10(size + 1))) : digits)));
  };

  const scaled = (value, base, names) => {
    let step = 0;
    let number = value;
    while (Math.abs(number) >= base && step < names.length - 1) {
      number /= base;
      step += 1;
    }
    return `${trim(number)}${names[step].startsWith(" ") || !names[step] ? "" : " "}${names[step]}`;
  };

  const seconds = (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 1e-3) return `${trim(value * 1e6)} µs`;
    if (size < 1) return `${trim(value * 1e3)} ms`;
    if (size < 120) return `${trim(value)} s`;
    if (size < 7200) return `${trim(value / 60)} min`;
    return size < 172_800 ? `${trim(value / 3600)} h` : `${trim(value / 86_400)} d`;
  };

  const UNITS = {
    short: (value) => scaled(value, 1000, THOUSANDS),
    none: (value) => trim(value, 6),
    "": (value) => scaled(value, 1000, THOUSANDS),
    bytes: (value) => scaled(value, 1024, IEC),
    decbytes: (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]),
    Bps: (value) => `${scaled(value, 1024, IEC)}/s`,
    binBps: (value) => `${scaled(value, 1024, IEC)}/s`,
    GBs: (value) => `${trim(value)} GB/s`,
    percent: (value) => `${trim(value)}%`,
    "%": (value) => `${trim(value)}%`,
    percentunit: (value) => `${trim(value * 100)}%`,
    s: seconds,
    seconds,
    ms: (value) => seconds(value / 1000),
    mwatt: (value) => `${trim(value / 1000)} W`,
    celsius: (value) => `${trim(value)} °C`,
  };

  const format = (value, unit) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    return UNITS[unit] ? UNITS[unit](value) : `${scaled(value, 1000, THOUSANDS)} ${unit}`;
  };

  const color = (series, position) => NAMED_COLORS[series.color] ?? (series.color || PALETTE[position % PALETTE.length]);

  const withOpacity = (hex, opacity) => {
    const short = /^#[0-9a-f]{3}$/i.test(hex);
    const digits = short ? [...hex.slice(1)].map((digit) => digit + digit).join("") : hex.slice(1, 7);
    const [red, green, blue] = [0, 2, 4].map((start) => Number.parseInt(digits.slice(start, start + 2), 16) || 0);
    return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
  };

  const timeZone = (requested) => {
    const saved = (() => {
      try {
        return localStorage.getItem("timezone");
      } catch {
        return null;
      }
    })();
    const name = requested && requested !== "browser" ? requested : saved;
    try {
      return new Intl.DateTimeFormat("en", { timeZone: name || undefined }).resolvedOptions().timeZone;
    } catch {
      return new Intl.DateTimeFormat("en").resolvedOptions().timeZone;
    }
  };

  const formatTime = (ms, zone) =>
    new Intl.DateTimeFormat("en-CA", {
      year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
      hourCycle: "h23", timeZone: zone,
    }).format(new Date(ms)).replace(",", "");

  const element = (name, className = "", text = "") => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text) made.textContent = text;
    return made;
  };

  return { format, color, withOpacity, timeZone, formatTime, element };
})();
