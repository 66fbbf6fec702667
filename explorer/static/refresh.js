// Fetch this page again when the run has changed, and replace the parts of it that are marked for that.

import { tick } from "./clock.js";
import { startCopying } from "./copy.js";

export function startRefreshing() {
  const pause = Number(document.getElementById("main").dataset.refresh || 0) * 1000;
  if (!pause) return;
  let changed = false, waiting = false;

  async function refresh() {
    waiting = false;
    if (document.hidden || !changed) return;
    changed = false;
    try {
      const reply = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (reply.ok) replace(new DOMParser().parseFromString(await reply.text(), "text/html"));
    } catch {
      changed = true; // no answer: the next change tries again
    }
  }

  function soon() {
    if (waiting) return;
    waiting = true;
    setTimeout(refresh, pause * (0.75 + Math.random() / 2)); // not all browsers in the same moment
  }

  document.addEventListener("muster:change", () => { changed = true; soon(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && changed) soon(); });
}

function replace(made) {
  for (const part of document.querySelectorAll("[data-fragment]")) {
    const fresh = made.querySelector(`[data-fragment="${part.dataset.fragment}"]`);
    if (!fresh) continue;
    tick(fresh);
    if (fresh.innerHTML === part.innerHTML) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    if (focused && focused.matches("input")) continue; // somebody is typing there
    const href = focused && focused.getAttribute("href");
    const scrolled = [...part.querySelectorAll(".wide")].map(element => element.scrollLeft);
    part.replaceChildren(...fresh.childNodes);
    part.querySelectorAll(".wide").forEach((element, place) => { element.scrollLeft = scrolled[place] || 0; });
    if (href) part.querySelector(`a[href="${CSS.escape(href)}"]`)?.focus();
    startCopying(part);
  }
}
