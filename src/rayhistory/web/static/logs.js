// A link to a line of a log file has the line in its fragment, which browsers do not send: load the page around it.
"use strict";

(() => {
  const wanted = /^#(L|B)(\d{1,15})$/.exec(location.hash);
  if (wanted && document.querySelector(".log-view") && !document.getElementById(location.hash.slice(1))) {
    const url = new URL(location.href);
    const name = wanted[1] === "L" ? "line" : "offset";
    if (url.searchParams.get(name) !== wanted[2]) {
      url.search = "";
      url.searchParams.set(name, wanted[2]);
      location.replace(url);
    }
  } else if (wanted) {
    document.getElementById(location.hash.slice(1))?.classList.add("selected");
  }

  // n and p go to the next and the previous match, as on the search page.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const link = { n: "find-next", p: "find-previous" }[event.key];
    if (link) document.getElementById(link)?.click();
  });

  if (document.getElementById("find-next")) document.querySelector(".log-line.selected")?.scrollIntoView({ block: "center" });
})();
