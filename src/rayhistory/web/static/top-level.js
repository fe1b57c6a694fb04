// Loaded before Ray's frontend where the browser does not say whether the document is in an iframe. A link that was
// opened in a new tab leaves the iframe: show the bar there, so that a past session never looks like a live one.
"use strict";

if (window === window.top) {
  const url = new URL(location.href);
  url.searchParams.delete("bare");
  location.replace(url);
}
