"""The little the server's page does by itself: it tells the server whether the reader wants light or dark."""

from typing import Final

SCRIPT: Final = """
"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function tell() {
    const scheme = dark.matches ? "dark" : "light";
    if (!window.dash_clientside || !window.dash_clientside.set_props || !document.getElementById("page")) {
      setTimeout(tell, 20);
      return;
    }
    window.dash_clientside.set_props("scheme", { data: scheme });
  }
  dark.addEventListener("change", tell);
  tell();
})();
"""
