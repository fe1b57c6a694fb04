// Draw the data of a panel: lines and areas with uPlot; numbers, bars, tables and heatmaps as elements.
"use strict";

(() => {
  const charts = window.rayHistoryCharts;
  const { format, color, withOpacity, formatTime, element } = charts;
  const TOOLTIP_ROWS = 14;
  const MARKER_COLORS = { failure: "#f2495c", node_died: "#ff780a", job_started: "#73bf69", job_ended: "#8e8e8e" };
  const CLICK_PIXELS = 6;
  const BINARY_UNITS = new Set(["bytes", "Bps", "binBps"]);
  const POWERS_OF_TWO = Array.from({ length: 60 }, (_, exponent) => 2 ** exponent);

  const TIME_LABELS = [
    [86_400, "{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, null, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", "\n{YYYY}-{MM}-{DD}", null, null, null, null, null, 1],
  ];

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = () => document.documentElement.dataset.theme === "dark";
  const axisColor = () => (isDark() ? "#9aa0a6" : "#5a6269");
  const gridColor = () => (isDark() ? "#2f3133" : "#e3e8ee");

  const lastValue = (values) => {
    for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
    return null;
  };

  const statistics = (values) => {
    const numbers = values.filter((value) => value !== null);
    const sum = numbers.reduce((total, value) => total + value, 0);
    return {
      last: lastValue(values),
      max: numbers.length ? numbers.reduce((one, other) => Math.max(one, other)) : null,
      mean: numbers.length ? sum / numbers.length : null,
    };
  };

  // Stacked series are drawn as sums of the series below them. Where the series below has no value, an invisible line
  // is the lower end of the area.
  const stacked = (series, shown) => {
    const below = { total: null, index: 0 };
    const bands = [];
    const floors = [];
    const columns = series.map((each, position) => {
      if (!each.stack || !shown.has(position)) return each.values;
      const previous = below.total;
      const sums = each.values.map((value, at) => (value === null ? (previous?.[at] ?? null) : value + (previous?.[at] ?? 0)));
      if (previous) {
        const fill = withOpacity(color(each, position), Math.max(each.fill, 0.05));
        const drawn = series[below.index - 1].values;
        const isWhole = each.values.every((value, at) => value === null || drawn[at] !== null);
        if (!isWhole) floors.push(previous.map((value) => value ?? 0));
        bands.push({ series: [position + 1, isWhole ? below.index : series.length + floors.length], fill });
      }
      below.total = sums;
      below.index = position + 1;
      return each.values.map((value, at) => (value === null ? null : sums[at]));
    });
    return { columns: [...columns, ...floors], bands, floors };
  };

  const hatched = (context) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const brush = tile.getContext("2d");
    brush.strokeStyle = "rgba(242, 73, 92, 0.45)";
    brush.lineWidth = 1.5;
    brush.beginPath();
    brush.moveTo(0, 8);
    brush.lineTo(8, 0);
    brush.stroke();
    return context.createPattern(tile, "repeat");
  };

  const drawGaps = (plot, gaps) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = hatched(ctx);
    for (const gap of gaps) {
      const [left, right] = [gap.from_ms, gap.to_ms].map((ms) => plot.valToPos(ms / 1000, "x", true));
      ctx.fillRect(left, bbox.top, Math.max(2, right - left), bbox.height);
    }
    ctx.restore();
  };

  const drawMarkers = (plot, markers) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([4, 4]);
    ctx.lineWidth = devicePixelRatio;
    for (const marker of markers) {
      const at = Math.round(plot.valToPos(marker.at_ms / 1000, "x", true));
      if (at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.strokeStyle = MARKER_COLORS[marker.kind] ?? "#8e8e8e";
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillStyle = ctx.strokeStyle;
      ctx.fillRect(at - 3 * devicePixelRatio, bbox.top, 6 * devicePixelRatio, 4 * devicePixelRatio);
    }
    ctx.restore();
  };

  const markerAt = (plot, markers) =>
    markers
      .map((marker) => [Math.abs(plot.valToPos(marker.at_ms / 1000, "x") - plot.cursor.left), marker])
      .filter(([distance]) => distance <= CLICK_PIXELS)
      .sort(([one], [other]) => one - other)[0]?.[1];

  const tooltipRows = (data, shown, at) =>
    data.series
      .map((each, position) => ({ each, position, value: each.values[at] }))
      .filter(({ position, value }) => shown.has(position) && value !== null && value !== undefined)
      .sort((one, other) => other.value - one.value);

  const fillTooltip = (tooltip, plot, panel, data, shown, view) => {
    const at = plot.cursor.idx;
    const isHovered = plot.cursor.left >= 0 && plot.over.matches(":hover"); // the cursor of all charts is shared
    const rows = at === null || at === undefined || !isHovered ? [] : tooltipRows(data, shown, at);
    const marker = isHovered ? markerAt(plot, view.markers()) : undefined;
    const gap = isHovered && at !== null && data.gaps.find((each) => each.from_ms <= data.times[at] && data.times[at] <= each.to_ms);
    tooltip.hidden = !rows.length && !marker && !gap;
    if (tooltip.hidden) return;
    tooltip.replaceChildren(element("b", "", formatTime(data.times[at], view.zone)));
    if (marker) tooltip.append(element("p", `marker ${marker.kind}`, marker.text));
    if (gap) tooltip.append(element("p", "marker failure", gap.reason));
    for (const { each, position, value } of rows.slice(0, TOOLTIP_ROWS)) {
      const line = element("p");
      const swatch = element("i");
      swatch.style.background = color(each, position);
      line.append(swatch, element("span", "", each.name), element("b", "", format(value, panel.unit)));
      tooltip.append(line);
    }
    if (rows.length > TOOLTIP_ROWS) tooltip.append(element("p", "muted", `and ${rows.length - TOOLTIP_ROWS} more`));
    const onRight = plot.cursor.left > plot.over.clientWidth / 2;
    const room = onRight ? plot.over.offsetLeft + plot.cursor.left : plot.over.clientWidth - plot.cursor.left;
    tooltip.style.maxWidth = `${Math.min(440, Math.max(120, room - 20))}px`;
    tooltip.style.left = onRight ? "" : `${plot.over.offsetLeft + plot.cursor.left + 14}px`;
    tooltip.style.right = onRight ? `${plot.root.clientWidth - plot.over.offsetLeft - plot.cursor.left + 14}px` : "";
  };

  const axisWidth = (plot, labels) => 16 + 6.5 * Math.max(5, ...(labels ?? []).map((label) => label.length));

  const yRange = (panel, columns) => {
    const fixed = (value) => (typeof value === "number" ? value : null);
    return (plot, low, high) => {
      const hasScale = columns.length && Number.isFinite(low) && Number.isFinite(high) && (low || high); // zeros alone have none
      const [bottom, top] = hasScale ? uPlot.rangeNum(Math.min(low, 0), high, { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.1, soft: 0, mode: 1 } }) : [0, 1];
      const [least, most] = [fixed(panel.min) ?? bottom, fixed(panel.max) ?? top];
      return least < most ? [least, most] : [least, least + 1];
    };
  };

  const lineOptions = (panel, data, shown, view, size, tooltip) => {
    const { columns, bands, floors } = stacked(data.series, shown);
    const axis = { stroke: axisColor, grid: { stroke: gridColor, width: 1 }, ticks: { stroke: gridColor, width: 1 }, font: "11px sans-serif" };
    const lines = data.series.map((each, position) => ({
      label: each.name,
      show: shown.has(position),
      stroke: color(each, position),
      width: panel.line_width || 1,
      dash: each.dashed ? [8, 6] : undefined,
      fill: each.fill && !bands.some((band) => band.series[0] === position + 1) ? withOpacity(color(each, position), each.fill) : undefined,
      spanGaps: panel.connect_gaps,
      points: { show: data.times.length === 1 || each.values.filter((value) => value !== null).length === 1 },
    }));
    const options = {
      ...size,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), view.zone),
      legend: { show: false },
      cursor: { sync: { key: "charts" }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { min: data.from_ms / 1000, max: data.to_ms / 1000 }, y: { range: yRange(panel, columns) } },
      axes: [
        { ...axis, values: TIME_LABELS },
        { ...axis, size: axisWidth, incrs: BINARY_UNITS.has(panel.unit) ? POWERS_OF_TWO : undefined, values: (plot, splits) => splits.map((value) => format(value, panel.unit)) },
      ],
      series: [{}, ...lines, ...floors.map(() => ({ stroke: "transparent", points: { show: false } }))],
      bands,
      hooks: {
        drawClear: [(plot) => drawGaps(plot, data.gaps)],
        draw: [(plot) => drawMarkers(plot, view.markers())],
        setCursor: [(plot) => fillTooltip(tooltip, plot, panel, data, shown, view)],
        setSelect: [(plot) => {
          if (plot.select.width < 5) return;
          const [from, to] = [plot.select.left, plot.select.left + plot.select.width].map((at) => plot.posToVal(at, "x") * 1000);
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          view.zoom(Math.round(from), Math.round(to));
        }],
      },
    };
    return { options, columns };
  };

  const legendRows = (panel, data, shown, redraw) =>
    data.series
      .map((each, position) => ({ each, position, ...statistics(each.values) }))
      .sort((one, other) => (other.last ?? -Infinity) - (one.last ?? -Infinity))
      .map(({ each, position, last, max, mean }) => {
        const row = element("tr", shown.has(position) ? "" : "off");
        const name = element("td");
        const button = element("button", "", each.name);
        const swatch = element("i");
        swatch.style.background = color(each, position);
        button.type = "button";
        button.prepend(swatch);
        button.title = "Show only this series; with Ctrl, hide or show it";
        button.setAttribute("aria-pressed", String(shown.has(position)));
        button.addEventListener("click", (event) => {
          if (event.ctrlKey || event.metaKey) shown.has(position) ? shown.delete(position) : shown.add(position);
          else if (shown.size === 1 && shown.has(position)) data.series.forEach((_, other) => shown.add(other));
          else {
            shown.clear();
            shown.add(position);
          }
          redraw();
        });
        name.append(button);
        row.append(name, ...[mean, max, last].map((value) => element("td", "number", format(value, panel.unit))));
        return row;
      });

  const legend = (panel, data, shown, redraw) => {
    const holder = element("div", "chart-legend");
    const table = element("table");
    const head = element("tr");
    head.append(...["Series", "Mean", "Max", "Last"].map((text, at) => element("th", at ? "number" : "", text)));
    table.append(head, ...legendRows(panel, data, shown, redraw));
    holder.append(table);
    return holder;
  };

  const drawLines = (body, panel, data, view) => {
    const shown = new Set(data.series.map((_, position) => position).filter((position) => !data.series[position].hidden));
    const holder = element("div", "chart-plot");
    const tooltip = element("div", "chart-tooltip");
    tooltip.hidden = true;
    let plot = null;
    const draw = () => {
      plot?.destroy();
      body.replaceChildren(holder);
      if (panel.show_legend && data.series.length) body.append(legend(panel, data, shown, draw));
      const size = { width: Math.max(80, holder.clientWidth), height: Math.max(60, holder.clientHeight) };
      const { options, columns } = lineOptions(panel, data, shown, view, size, tooltip);
      plot = new uPlot(options, [data.times.map((ms) => ms / 1000), ...columns], holder);
      plot.root.append(tooltip);
      plot.over.addEventListener("dblclick", () => view.resetZoom());
      plot.over.addEventListener("click", () => {
        const marker = markerAt(plot, view.markers());
        if (marker) view.goTo(marker.at_ms);
      });
      body.chartData = data;
    };
    draw();
    return {
      resize: () => plot?.setSize({ width: Math.max(80, holder.clientWidth), height: Math.max(60, holder.clientHeight) }),
      redraw: draw,
      destroy: () => plot?.destroy(),
    };
  };

  const rowsByValue = (data) => data.series.map((each, position) => ({ each, position, value: lastValue(each.values) }));

  const drawStat = (body, panel, data) => {
    const list = element("div", "chart-stats");
    for (const { each, value } of rowsByValue(data)) {
      const item = element("p");
      item.append(element("b", "", format(value, panel.unit)), element("span", "muted", each.name));
      list.append(item);
    }
    body.replaceChildren(list);
  };

  const drawBars = (body, panel, data) => {
    const rows = rowsByValue(data);
    const most = panel.max ?? Math.max(...rows.map(({ value }) => value ?? 0), 0);
    const list = element("div", "chart-bars");
    for (const { each, position, value } of rows) {
      const item = element("p");
      const bar = element("i");
      bar.style.width = `${most > 0 ? Math.min(100, Math.max(0, ((value ?? 0) / most) * 100)) : 0}%`;
      bar.style.background = color(each, position);
      const track = element("span", "track");
      track.append(bar);
      item.append(element("span", "name", each.name), track, element("b", "", format(value, panel.unit)));
      list.append(item);
    }
    body.replaceChildren(list);
  };

  const drawTable = (body, panel, data) => {
    const names = [...new Set(data.series.flatMap((each) => Object.keys(each.labels)))].sort();
    const table = element("table", "chart-table");
    const head = element("tr");
    head.append(...[...names, "Value"].map((name) => element("th", "", name)));
    table.append(head);
    for (const { each, value } of rowsByValue(data)) {
      const row = element("tr");
      row.append(...names.map((name) => element("td", "", each.labels[name] ?? "")), element("td", "number", format(value, panel.unit)));
      table.append(row);
    }
    body.replaceChildren(table);
  };

  const upperBound = (each) => {
    const text = each.labels.le ?? each.name;
    const number = /inf/i.test(text) ? Infinity : Number.parseFloat(text);
    return Number.isNaN(number) ? Infinity : number;
  };

  // Buckets are cumulative: a cell is the difference to the bucket below.
  const heatmapCells = (data) => {
    const buckets = [...data.series].sort((one, other) => upperBound(one) - upperBound(other));
    const cumulative = buckets.every((each) => "le" in each.labels);
    return buckets.map((each, row) => ({
      name: each.name,
      values: each.values.map((value, at) => (value === null ? null : Math.max(0, value - (cumulative && row ? (buckets[row - 1].values[at] ?? 0) : 0)))),
    }));
  };

  const drawHeatmap = (body, panel, data, view) => {
    const cells = heatmapCells(data);
    const most = Math.max(...cells.flatMap((row) => row.values.map((value) => value ?? 0)), 0);
    const holder = element("div", "chart-plot");
    let plot = null;
    const draw = () => {
      plot?.destroy();
      body.replaceChildren(holder);
      const axis = { stroke: axisColor, grid: { show: false }, font: "11px sans-serif" };
      plot = new uPlot({
        width: Math.max(80, holder.clientWidth),
        height: Math.max(60, holder.clientHeight),
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), view.zone),
        legend: { show: false },
        scales: { x: { min: data.from_ms / 1000, max: data.to_ms / 1000 }, y: { range: () => [0, Math.max(1, cells.length)] } },
        axes: [{ ...axis, values: TIME_LABELS }, { ...axis, size: 90, splits: () => cells.map((_, row) => row + 0.5), values: () => cells.map((row) => row.name.slice(0, 14)) }],
        series: [{}, { show: true, stroke: "transparent", points: { show: false } }],
        hooks: { draw: [(chart) => {
          const width = Math.max(1, chart.bbox.width / Math.max(1, data.times.length));
          cells.forEach((row, at) => row.values.forEach((value, column) => {
            if (!value) return;
            chart.ctx.fillStyle = withOpacity("#5794f2", 0.1 + 0.9 * (value / most));
            const [bottom, top] = [at, at + 1].map((level) => chart.valToPos(level, "y", true));
            chart.ctx.fillRect(chart.valToPos(data.times[column] / 1000, "x", true) - width, top, width + 0.5, bottom - top);
          }));
          drawMarkers(chart, view.markers());
        }] },
      }, [data.times.map((ms) => ms / 1000), data.times.map(() => null)], holder);
    };
    draw();
    return { resize: draw, redraw: draw, destroy: () => plot?.destroy() };
  };

  const DRAW = { timeseries: drawLines, heatmap: drawHeatmap, stat: drawStat, gauge: drawBars, bars: drawBars, table: drawTable };

  charts.drawPanel = (body, panel, data, view) => {
    body.dataset.state = "drawn";
    body.dataset.series = String(data.series.length);
    if (!DRAW[panel.kind]) {
      body.replaceChildren(element("p", "chart-message", `Panels of type “${panel.grafana_type}” are not drawn here.`));
      return null;
    }
    if (!data.series.length && data.errors.length) {
      body.replaceChildren(element("p", "chart-message bad", data.errors[0]));
      return null;
    }
    if (!data.series.length && !data.gaps.length) {
      body.dataset.state = "empty";
      body.replaceChildren(element("p", "chart-message", "No data"));
      return null;
    }
    return DRAW[panel.kind](body, panel, data, view) ?? null;
  };
  charts.style = style;
})();
