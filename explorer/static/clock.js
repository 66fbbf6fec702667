// Countdowns by the chain's clock, and moments by how long ago they were.

const SPANS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

let chainTime = Number(document.body.dataset.chainTime) || Date.now() / 1000;
let readAt = performance.now();

// How far the viewer's clock is behind the server's, which made the page a moment ago.
const shift = (Number(document.body.dataset.made) || Date.now() / 1000) - Date.now() / 1000;

// Set the chain's clock by the newest block. It never goes back: blocks are seconds apart.
export function setChainTime(seconds) {
  if (seconds > now()) {
    chainTime = seconds;
    readAt = performance.now();
  }
}

function now() {
  return chainTime + (performance.now() - readAt) / 1000;
}

// Return a length of time in its two largest units, as the server does.
export function span(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const parts = [];
  for (const [name, length] of SPANS) {
    const count = Math.floor(left / length);
    left -= count * length;
    if (count) parts.push(`${count} ${name}`);
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

function countDown(root) {
  for (const element of root.querySelectorAll("[data-until]")) {
    const left = Number(element.dataset.until) - now();
    write(element, left > 0 ? `in ${span(left)}` : "now");
  }
}

function tellMoments(root) {
  const wall = Date.now() / 1000 + shift;
  for (const element of root.querySelectorAll("[data-moment]")) {
    const age = wall - Number(element.dataset.moment);
    if (!element.title) element.title = element.textContent;
    const largest = span(Math.abs(age)).split(" ").slice(0, 2).join(" ");
    write(element, Math.abs(age) < 2 ? "now" : age > 0 ? `${largest} ago` : `in ${largest}`);
  }
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Bring the clocks below an element up to date: what was just put into the page, for example.
export function tick(root) {
  countDown(root);
  tellMoments(root);
}

export function startClocks(root) {
  tick(root);
  setInterval(() => document.hidden || countDown(root), 1000);
  setInterval(() => document.hidden || tellMoments(root), 15000);
}
