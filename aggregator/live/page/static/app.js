// The page: which view an address means, what is open, and whether what one sees is still live.

import { advisoriesPage } from "./advisories.js";
import { AGAIN, get, isPassing } from "./api.js";
import { hubNow, setHubTime } from "./clock.js";
import { h, instant, shape, show } from "./dom.js";
import { fleetPage } from "./fleet.js";
import { goesOn, incidentsPage } from "./incidents.js";
import { senderPage } from "./sender.js";
import { sendersPage, sitePage, sitesPage } from "./sites.js";
import { begin, connection, hurry, listen } from "./stream.js";
import { ZONE, inUtc, local } from "./text.js";

const VIEWS = [
  [/^\/$/, fleetPage],
  [/^\/sites$/, sitesPage],
  [/^\/sites\/([^/]+)\/([^/]+)$/, sitePage],
  [/^\/senders$/, sendersPage],
  [/^\/sender$/, senderPage],
  [/^\/advisories$/, advisoriesPage],
  [/^\/incidents$/, incidentsPage],
];

const main = document.querySelector("main");
const pill = document.querySelector("#live");
const lost = document.querySelector("#lost");
const spoken = document.querySelector("#spoken");
let view = null;
let visit = 0;
let again = 0;
const badge = document.querySelector("#open");
const openIncidents = new Set();
let areCounted = false;
let toSay = [];

/** Tell a screen reader, in batches: a thousand sites may change at once. */
function announce(text) {
  toSay.push(text);
  if (toSay.length > 1) return;
  setTimeout(() => {
    spoken.textContent = toSay.length > 3 ? `${toSay.length} sites changed; the last: ${toSay.at(-1)}` : toSay.join(". ");
    toSay = [];
  }, 1500);
}

function found(pathname) {
  for (const [pattern, page] of VIEWS) {
    const parts = pattern.exec(pathname);
    if (!parts) continue;
    try {
      return [page, parts.slice(1).map(decodeURIComponent)];
    } catch {
      break;
    }
  }
  return [missingPage, []];
}

const isView = (pathname) => VIEWS.some(([pattern]) => pattern.test(pathname));

function missingPage(root) {
  root.append(h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "/" }, "The fleet")));
  return { title: () => "No such page", load: async () => {}, heard: {} };
}

function go() {
  view?.end?.();
  visit += 1;
  const [page, parts] = found(location.pathname);
  const root = h("div", { class: "view" });
  main.replaceChildren(root);
  view = page(root, { parts, parameters: new URLSearchParams(location.search), announce, reload: load });
  for (const each of document.querySelectorAll("header nav a")) {
    const path = new URL(each.href).pathname;
    const here = path === "/" ? location.pathname === "/" : location.pathname.startsWith(path.replace(/s$/, ""));
    if (here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  load();
}

async function load() {
  const mine = visit;
  clearTimeout(again);
  again = 0;
  const shown = view;
  try {
    await shown.load();
    if (mine === visit) main.querySelector(".failed")?.remove();
  } catch (error) {
    if (mine !== visit || error.name === "AbortError") return;
    main.querySelector(".failed")?.remove();
    const text = isPassing(error) ? `Not loaded: ${error.message.replace(/\.?$/, ".")} Trying again.` : error.message;
    main.prepend(h("p", { class: "failed note", role: "alert" }, shape("unknown"), ` ${text}`));
    if (isPassing(error)) again = setTimeout(load, AGAIN);
  }
  if (mine === visit) retitle();
}

function retitle() {
  // Another page of this browser may pass on what it hears before there is a view.
  if (!view) return;
  document.title = `${view.title()} · Muster`;
}

function showBadge() {
  badge.hidden = !openIncidents.size;
  badge.textContent = openIncidents.size;
  badge.setAttribute("aria-label", `${openIncidents.size} open`);
}

async function countIncidents() {
  try {
    const found = await get("incidents");
    openIncidents.clear();
    for (const each of found.incidents) if (goesOn(each)) openIncidents.add(each.incident_id);
    areCounted = true;
    showBadge();
  } catch {
    // The view's own questions say what is wrong. It is asked again when the connection is back.
    areCounted = false;
  }
}

function showConnection() {
  const { connected, since } = connection();
  document.body.classList.toggle("is-lost", connected === false);
  pill.className = connected ? "is-up" : connected === false ? "is-stale" : "";
  pill.replaceChildren(shape(connected ? "up" : "unknown"), connected ? "live" : connected === false ? "not live" : "connecting");
  lost.hidden = connected !== false;
  if (connected === false) {
    // Written once: a screen reader says an alert again whenever it changes.
    show(lost.querySelector("span"), `Connection lost at ${local(since * 1000)}. What you see is how it was then; trying again.`);
  }
}

listen((message) => {
  if (message.kind === "connected" || message.kind === "lost" || message.kind === "reset") {
    // What changed meanwhile is told again, unless the stream could not go on where it was: then ask for the whole.
    const isBack = message.kind === "connected";
    if (view && (message.kind === "reset" || (isBack && again))) load();
    if (message.kind === "reset" || (isBack && view && !areCounted)) countIncidents();
    showConnection();
    return;
  }
  const { data } = message;
  const many = Array.isArray(data) ? data : [data];
  for (const each of many) {
    if (each.now_us) setHubTime(each.now_us);
    view?.heard[message.kind]?.(each);
    if (message.kind === "incident") {
      if (goesOn(each)) openIncidents.add(each.incident_id);
      else openIncidents.delete(each.incident_id);
      showBadge();
    }
  }
  retitle();
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || anchor.target) return;
  const address = new URL(anchor.href);
  // What is no view, as the page for signing in, is the browser's to open.
  if (address.origin !== location.origin || !isView(address.pathname) || anchor.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  history.pushState(null, "", address);
  go();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
addEventListener("popstate", go);

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
  const field = document.querySelector("#search") ?? document.querySelector("#anywhere");
  event.preventDefault();
  field.focus();
});

document.querySelector("#find").addEventListener("submit", (event) => {
  event.preventDefault();
  history.pushState(null, "", `/senders?${new URLSearchParams({ search: document.querySelector("#anywhere").value })}`);
  go();
});
document.querySelector("#again").addEventListener("click", hurry);

setInterval(() => {
  view?.tick?.();
  showConnection();
  const now = hubNow();
  if (now) document.querySelector("#now").replaceChildren(instant(now), inUtc(now) ? "" : h("span", { class: "zone" }, ` ${ZONE}`));
}, 1000);

showConnection();
// Times are told by the hub's clock: nothing is drawn before it is known, or cannot be.
get("fleet").then((fleet) => setHubTime(fleet.now_us), () => {}).finally(() => {
  go();
  countIncidents();
  begin();
});
