// The first page: how much of the fleet is up, stale, unknown; where; since when; and whether that can be trusted.

import { get } from "./api.js";
import { hubNow } from "./clock.js";
import { curve } from "./curve.js";
import { h, instant, link, named, shape, show, siteAddress, stateMark } from "./dom.js";
import { goesOn, inOrder, incidentCard } from "./incidents.js";
import { sentence } from "./advisories.js";
import { counted, duration, number, percent, reason, visible } from "./text.js";

const STATES = ["up", "stale", "unknown", "maintenance", "retired"];
const MEANT = { stale: ", not heard when due", unknown: ", nobody can tell" };
const TROUBLE = ["stale", "unknown", "maintenance", "up", "retired"];
const MOST_TILES = 600;
const MOST_ADVISORIES = 8;

export const total = (counts) => counts.up + counts.stale + counts.unknown + counts.maintenance;

/** Say the whole in one sentence. */
export function headline(counts) {
  const all = total(counts);
  if (!all) return counts.retired ? "No sender is expected: all are retired." : "No sender has registered yet.";
  const parts = ["stale", "unknown"].filter((state) => counts[state]).map((state) => `${number(counts[state])} ${state}`);
  const planned = counts.maintenance ? `${parts.length ? ", " : ""}${number(counts.maintenance)} in maintenance` : "";
  if (counts.maintenance === all) return `All ${counted(all, "sender")} are in maintenance.`;
  if (!parts.length) return counts.maintenance ? `${number(counts.up)} of ${counted(all, "sender")} up, ${planned}.` : all === 1 ? "Its one sender is up." : `All ${counted(all, "sender")} are up.`;
  return `${parts.join(", ")}${planned} of ${counted(all, "sender")}.`;
}

const sentenceOf = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1).replace(/[.]$/, "")}.`;

/** The proportions of the states, as a bar whose parts are also words. */
export function bar(counts) {
  const all = total(counts) || 1;
  const parts = STATES.slice(0, 4).filter((state) => counts[state]);
  return h("div", { class: "bar", "aria-hidden": "true" }, parts.map((state) => h("span", { class: `is-${state}`, size: { "flex-grow": Math.max(counts[state] / all, 0.006) } })));
}

export function figures(counts, address) {
  const all = total(counts);
  return h(
    "dl",
    { class: "figures" },
    STATES.map((state) =>
      h(
        "div",
        { class: `figure-tile is-${state}${counts[state] ? "" : " none"}` },
        h("dt", {}, address && counts[state] ? link(`${address}${state}`, stateMark(state)) : stateMark(state)),
        h("dd", {}, number(counts[state])),
        h("dd", { class: "note" }, state === "retired" ? "not expected any more" : `${percent(counts[state], all)}${counts[state] ? MEANT[state] ?? "" : ""}`),
      ),
    ),
  );
}

/** What a site's tile and row say of it. */
export function siteWords(site) {
  const { counts } = site;
  const all = total(counts);
  if (site.state === "unknown") return `unknown: ${reason(site.reason ?? "")}`;
  if (site.state === "stale") return `${number(counts.stale)} of ${number(all)} stale`;
  if (site.state === "maintenance") return `${number(counts.maintenance)} in maintenance`;
  return all ? `${number(counts.up)} up` : "nobody expected";
}

function tile(site) {
  const known = site.state === "unknown" ? ["known until ", instant(site.known_until_us, { both: false })] : site.state === "stale" ? ["since ", instant(site.since_us, { both: false })] : [];
  return h(
    "a",
    { class: `tile is-${site.state}`, href: siteAddress(site.region, site.site), "data-site": `${site.region}/${site.site}` },
    shape(site.state),
    h("b", {}, named(site.site, 64)),
    h("span", { class: "word" }, siteWords(site)),
    known.length ? h("span", { class: "soft" }, known) : null,
    site.state === "stale" || site.state === "maintenance" ? bar(site.counts) : null,
  );
}

const byTrouble = (a, b) =>
  TROUBLE.indexOf(a.state) - TROUBLE.indexOf(b.state) || b.counts.stale - a.counts.stale || a.site.localeCompare(b.site, "en", { numeric: true });

export function fleetPage(root, { announce }) {
  const title = h("h1", {}, "…");
  const trust = h("p", { class: "note" });
  const numbers = h("div");
  const incidents = h("section", { "aria-labelledby": "wrong" });
  const grid = h("section", { "aria-labelledby": "where" });
  const drawn = h("div", { class: "curve" });
  const recent = h("ul", { class: "told" });
  const hours = h("select", { id: "hours", onchange: () => drawCurve() }, [[1, "hour"], [6, "6 hours"], [24, "24 hours"], [168, "7 days"]].map(([value, word]) => h("option", { value, selected: value === 6 }, word)));
  root.append(
    title,
    trust,
    numbers,
    incidents,
    grid,
    h("section", { "aria-labelledby": "curve" }, h("div", { class: "beside" }, h("h2", { id: "curve" }, "Over time"), h("label", { for: "hours" }, "the last ", hours)), drawn),
    h("section", { "aria-labelledby": "recent" }, h("div", { class: "beside" }, h("h2", { id: "recent" }, "Latest advisories"), link("/advisories", "all advisories")), recent),
  );
  let fleet = null;
  const sites = new Map();
  let siteTotal = 0;
  let points = [];
  let open = null;
  let due = 0;

  function drawNumbers() {
    if (!fleet) return;
    show(title, headline(fleet.counts));
    numbers.replaceChildren(figures(fleet.counts, "/senders?state="), bar(fleet.counts));
    if (open && !open.size) drawIncidents();
    tick();
  }

  function tick() {
    if (!fleet) return;
    const age = hubNow() - fleet.known_until_us;
    const until = fleet.known_until_us ? ["Known until ", instant(fleet.known_until_us), age > 0 ? ` (${duration(age)} ago). ` : ". "] : ["Nothing is known now. "];
    const doubt = fleet.unknown_site_count || !fleet.known_until_us;
    trust.className = `note trusted ${doubt ? "is-unknown" : "is-up"}`;
    trust.replaceChildren(shape(doubt ? "unknown" : "up"), h("span", {}, until, sentenceOf(visible(fleet.trust, 400))));
  }

  function drawGrid() {
    const regions = new Map((fleet?.regions ?? []).map((region) => [region.region, []]));
    const shown = [...sites.values()].sort(byTrouble).slice(0, MOST_TILES);
    for (const site of shown) regions.set(site.region, [...(regions.get(site.region) ?? []), site]);
    const more = Math.max(siteTotal, sites.size) - shown.length;
    grid.replaceChildren(
      h("div", { class: "beside" }, h("h2", { id: "where" }, "Where"), link("/sites", `${counted(siteTotal || sites.size, "site")} as a list`)),
      ...[...regions].map(([name, members]) => region(name, members)),
      more > 0 ? h("p", {}, link("/sites", `and ${counted(more, "more site", "more sites")}`)) : "",
    );
  }

  function region(name, members) {
    const told = fleet?.regions.find((each) => each.region === name);
    const behind = told?.is_behind ? h("p", { class: "note is-unknown" }, shape("unknown"), ` the hub does not get what this region says${told.source_error ? `: ${visible(told.source_error, 200)}` : ""}; ${counted(told.source_lag, "message")} to come`) : null;
    const sum = told ? `${counted(told.site_count, "site")}, ${counted(total(told.counts), "sender")}` : counted(members.length, "site");
    return h("section", { class: "region" }, h("h3", {}, named(name, 60), h("small", {}, ` ${sum}`)), behind, h("div", { class: "tiles" }, members.map(tile)));
  }

  function drawIncidents() {
    due = 0;
    const list = inOrder(open.values());
    incidents.replaceChildren(
      h("h2", { id: "wrong" }, list.length ? counted(list.length, "open incident") : "No open incident"),
      !list.length && fleet?.counts.stale + fleet?.counts.unknown > 0 ? h("p", { class: "soft" }, "One begins where many senders of a site are stale, or nobody can see a site, for a while.") : "",
      h("div", { class: "cards" }, list.slice(0, 20).map((incident) => incidentCard(incident))),
      list.length > 20 ? link("/incidents", `and ${list.length - 20} more`) : "",
    );
    incidents.classList.toggle("calm", !list.length);
  }

  function drawCurve() {
    get("history", { hours: hours.value }).then((answer) => {
      points = answer;
      drawPoints();
    }, (error) => drawn.replaceChildren(h("p", { class: "soft" }, error.message)));
  }

  function drawPoints() {
    const details = drawn.querySelector("details")?.open;
    // What was recorded last holds until now.
    const shown = fleet && points.length && fleet.now_us > points.at(-1).at_us ? [...points, { at_us: fleet.now_us, counts: fleet.counts }] : points;
    drawn.replaceChildren(curve(shown, Math.max(280, drawn.clientWidth)));
    if (details) drawn.querySelector("details").open = true;
  }

  function prepend(advisory) {
    recent.prepend(sentence(advisory));
    while (recent.children.length > MOST_ADVISORIES) recent.lastChild.remove();
  }

  async function load() {
    const [whole, some, found, latest] = await Promise.all([
      get("fleet"),
      get("sites", { sort: "trouble", limit: MOST_TILES }),
      get("incidents"),
      get("advisories", { limit: MOST_ADVISORIES }),
    ]);
    fleet = whole;
    sites.clear();
    for (const site of some.sites) sites.set(`${site.region}/${site.site}`, site);
    siteTotal = some.total;
    open = new Map(found.incidents.filter(goesOn).map((each) => [each.incident_id, each]));
    recent.replaceChildren(...latest.advisories.map((each) => sentence(each)));
    drawNumbers();
    drawGrid();
    drawIncidents();
    drawCurve();
  }

  let gridWaits = false;
  function gridSoon() {
    if (gridWaits) return;
    gridWaits = true;
    setTimeout(() => {
      gridWaits = false;
      drawGrid();
    }, 150);
  }

  function siteChanged(site) {
    const key = `${site.region}/${site.site}`;
    const before = sites.get(key);
    sites.set(key, site);
    const there = grid.querySelector(`[data-site="${CSS.escape(key)}"]`);
    if (!before || !there || before.state !== site.state) gridSoon();
    else {
      const focused = document.activeElement === there;
      const now = tile(site);
      there.replaceWith(now);
      if (focused) now.focus();
    }
    if (before && before.state !== site.state) announce(`${visible(site.site)}: ${siteWords(site)}`);
  }

  const resized = new ResizeObserver(() => points.length && drawPoints());
  resized.observe(drawn);
  const minutely = setInterval(drawCurve, 30_000);

  return {
    title: () => (fleet ? headline(fleet.counts) : "Fleet"),
    load,
    tick,
    heard: {
      fleet: (data) => {
        fleet = data;
        drawNumbers();
      },
      site: siteChanged,
      advisory: prepend,
      incident: (incident) => {
        if (!open) return;
        if (goesOn(incident)) open.set(incident.incident_id, incident);
        else open.delete(incident.incident_id);
        due ||= requestAnimationFrame(drawIncidents);
      },
    },
    end: () => {
      resized.disconnect();
      clearInterval(minutely);
      cancelAnimationFrame(due);
    },
  };
}
