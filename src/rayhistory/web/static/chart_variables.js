// Selects for the variables of a dashboard. A variable with several values is a menu of checkboxes.
"use strict";

(() => {
  const charts = window.rayHistoryCharts;
  const { element } = charts;
  const ALL = "$__all";
  const MIN_FILTERED = 10;

  charts.selectOf = (label, options, value, onChange) => {
    const holder = element("label", "chart-variable");
    const select = element("select");
    for (const [text, each] of options) {
      const option = element("option", "", text);
      option.value = each;
      option.selected = each === value;
      select.append(option);
    }
    select.addEventListener("change", () => onChange(select.value));
    holder.append(element("span", "", label), select);
    return holder;
  };

  const checkbox = (text, value, isChecked) => {
    const line = element("label");
    const box = element("input");
    box.type = "checkbox";
    box.value = value;
    box.checked = isChecked;
    line.append(box, element("span", "", text));
    return { line, box };
  };

  const filterOf = (rows) => {
    const filter = element("input", "chart-filter");
    filter.type = "search";
    filter.placeholder = "Filter";
    filter.setAttribute("aria-label", "Filter");
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      for (const { line } of rows) line.hidden = !line.textContent.toLowerCase().includes(wanted);
    });
    return filter;
  };

  const textOf = (values, options) => {
    const names = values.map((value) => options.find(([, each]) => each === value)?.[0] ?? value);
    return names.length > 2 ? `${names.length} selected` : names.join(" + ");
  };

  // The choice counts when the menu closes, as in Grafana. All excludes other values; no value means All.
  const menuOf = (label, options, values, onChange) => {
    const holder = element("details", "chart-variable");
    const summary = element("summary");
    const menu = element("div", "chart-menu");
    const rows = options.map(([text, value]) => checkbox(text, value, values.includes(value)));
    const boxes = rows.map(({ box }) => box);
    const chosen = () => boxes.filter((box) => box.checked).map((box) => box.value);
    for (const box of boxes) {
      box.addEventListener("change", () => {
        if (box.checked) for (const other of boxes) if ((box.value === ALL) !== (other.value === ALL)) other.checked = false;
        if (!chosen().length) boxes[0].checked = true;
        summary.lastChild.textContent = textOf(chosen(), options);
      });
    }
    summary.append(element("span", "", label), element("b", "", textOf(values, options)));
    if (rows.length > MIN_FILTERED) menu.append(filterOf(rows));
    menu.append(...rows.map(({ line }) => line));
    holder.append(summary, menu);
    const closeOutside = (event) => {
      if (!holder.contains(event.target) || event.key === "Escape") holder.open = false;
    };
    holder.addEventListener("toggle", () => {
      for (const kind of ["pointerdown", "keydown"]) document[holder.open ? "addEventListener" : "removeEventListener"](kind, closeOutside);
      if (!holder.open && String(chosen()) !== String(values)) onChange(chosen());
    });
    return holder;
  };

  charts.variableSelect = (variable, onChange) => {
    const options = [...(variable.include_all ? [["All", ALL]] : []), ...variable.options.map((option) => [option, option])];
    for (const value of variable.values) if (!options.some(([, known]) => known === value)) options.push([value, value]);
    if (variable.multi) return menuOf(variable.label, options, variable.values, onChange);
    return charts.selectOf(variable.label, options, variable.values[0], (value) => onChange([value]));
  };
})();
