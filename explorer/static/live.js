// Follow the run: ask every two seconds for numbers and the feed, and tell the rest of the page that something changed.

import { setChainTime, tick } from "./clock.js";

const FEED_LINES = 14;
const POLL_SECONDS = 2;
const RETRY_SECONDS = 10;
const ANSWER_SECONDS = 20;
const SAFE_PATH = /^\/[A-Za-z0-9/?=_-]*$/;

let taken = "";

export function followRun() {
  if (!document.body.dataset.live) return;
  poll();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
}

async function poll() {
  const answered = document.hidden || await ask();
  setTimeout(poll, 1000 * (answered ? POLL_SECONDS : RETRY_SECONDS));
}

// Ask for the state, which the browser has already where the answer is 304. Return whether there was an answer.
async function ask() {
  try {
    const reply = await fetch(document.body.dataset.live, { signal: AbortSignal.timeout(1000 * ANSWER_SECONDS) });
    if (!reply.ok) throw new Error(`HTTP ${reply.status}`);
    const text = await reply.text();
    show("live", "live");
    if (text !== taken) take(JSON.parse(text));
    taken = text;
    return true;
  } catch {
    show("lost", "reconnecting");
    return false;
  }
}

function show(state, text) {
  const pill = document.getElementById("link-state");
  pill.dataset.state = state;
  pill.querySelector("b").textContent = text;
}

function take(state) {
  setChainTime(state.block_time);
  stale(state.stale_since);
  for (const element of document.querySelectorAll("[data-live]")) {
    const text = state.shown[element.dataset.live];
    if (text === undefined || element === document.body || element.textContent === text) continue;
    element.textContent = text;
    if (element.dataset.tone) element.dataset.tone = state.tone;
    else if (element.dataset.live !== "block") freshen(element); // which changes every second
  }
  feed(state.events);
  document.dispatchEvent(new CustomEvent("muster:change", { detail: state }));
}

// Say since when the chain is not read, while it is not.
function stale(since) {
  const banner = document.getElementById("stale");
  banner.hidden = since === null;
  if (since === null) return;
  banner.querySelector("span").replaceChildren(moment(since));
  tick(banner);
}

function freshen(element) {
  element.classList.remove("fresh");
  void element.offsetWidth; // begins the animation again
  element.classList.add("fresh");
}

// Put new lines at the top of the feed. Names and reasons are strangers' words: they are set as text.
function feed(lines) {
  const list = document.getElementById("feed");
  if (!list) return;
  const newest = Math.max(0, ...[...document.querySelectorAll("[data-event]")].map(item => Number(item.dataset.event)));
  for (const line of lines) {
    if (line.id <= newest) continue; // shown already: alone, or in a line for several steps
    list.querySelector(".none")?.remove();
    if (line.kind === "step") list.querySelector(`[data-step="${CSS.escape(line.href)}"]`)?.remove(); // it was reported again
    list.prepend(feedLine(line));
  }
  while (list.children.length > FEED_LINES) list.lastElementChild.remove();
}

function moment(seconds) {
  const time = document.createElement("time");
  time.dataset.moment = seconds;
  time.dateTime = new Date(seconds * 1000).toISOString();
  time.textContent = time.dateTime.slice(0, 16).replace("T", " ") + " UTC";
  return time;
}

function feedLine(line) {
  const item = document.createElement("li");
  item.className = `is-${line.tone} fresh`;
  item.dataset.event = line.id;
  if (line.kind === "step") item.dataset.step = line.href;
  const when = item.appendChild(document.createElement("span"));
  when.className = "when";
  when.appendChild(moment(line.time));
  const link = item.appendChild(document.createElement("a"));
  link.setAttribute("href", SAFE_PATH.test(line.href) ? line.href : "/");
  if (line.who) {
    link.appendChild(document.createElement("bdi")).textContent = line.who;
    link.append(" ");
  }
  link.append(line.text);
  tick(item);
  return item;
}
