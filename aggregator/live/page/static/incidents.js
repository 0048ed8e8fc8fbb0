// Incidents: one for each cause and place, with what it lists and when it began and ended.

import { get } from "./api.js";
import { hubNow } from "./clock.js";
import { h, instant, link, named, shape, siteAddress, siteLink } from "./dom.js";
import { counted, duration, number, reason } from "./text.js";

const MOST_NAMED = 12;

/** The order of incidents: what goes on before what is about to end, the latest first. */
export const inOrder = (incidents) =>
  [...incidents].sort((a, b) => Boolean(a.clear_since_us) - Boolean(b.clear_since_us) || b.started_at_us - a.started_at_us);

/** Whether an incident goes on, and is no part of a wider one. */
export const goesOn = (incident) => !incident.ended_at_us && !incident.within;

/** Say what an incident is in a sentence, beside the shape of its cause. */
export function incidentCard(incident, level = "h3") {
  const place = incident.site ? siteLink(incident) : incident.region ? h("span", {}, "region ", named(incident.region, 60)) : "The hub";
  const stale = incident.cause === "stale";
  const over = Boolean(incident.ended_at_us);
  const count = incident.clear_since_us ? incident.most_count : incident.node_count;
  // Of a site, one block may be.
  const some = incident.site && count >= incident.expected_count ? "" : `, ${number(count)} of ${counted(incident.expected_count, incident.site ? "sender" : "site")}`;
  const what = incident.cause === "alone"
    ? ": only one agent of its pair is ready, nobody takes over from it"
    : stale
    ? `: ${number(count)} of ${number(incident.expected_count)} stale`
    : `: unknown, ${reason(incident.reason)}${some}`;
  const names = incident.nodes.slice(0, MOST_NAMED);
  const more = incident.most_count - names.length;
  const ended = over ? [", ", incident.outcome === "retired" ? "nobody expected any more since " : "over since ", instant(incident.ended_at_us), `, after ${duration(incident.ended_at_us - incident.started_at_us)}`] : [` (${duration(Math.max(0, (hubNow() || incident.known_until_us) - incident.started_at_us))})`];
  return h(
    "article",
    { class: `incident is-${over ? "retired" : stale ? "stale" : "unknown"}${incident.clear_since_us ? " is-clear" : ""}` },
    shape(over ? (incident.outcome === "retired" ? "retired" : "up") : stale ? "stale" : "unknown"),
    h(
      "div",
      {},
      h(level, {}, place, what),
      h("p", {}, "since ", instant(incident.started_at_us), ...ended, ...(over || !stale ? [] : ["; known until ", instant(incident.known_until_us)]), incident.clear_since_us && !over ? ["; over since ", instant(incident.clear_since_us), ", unless it returns"] : ""),
      names.length ? h("p", { class: "nodes" }, names.map((node, at) => [at ? ", " : "", incident.site ? named(node, 40) : link(incident.region ? siteAddress(incident.region, node) : `/sites?${new URLSearchParams({ search: node })}`, named(node, 40))]), more > 0 ? ` and ${number(more)} more` : "") : null,
    ),
  );
}

export function incidentsPage(root) {
  const now = h("section");
  const past = h("section");
  root.append(h("h1", {}, "Incidents"), h("p", { class: "lead" }, "One for each cause and place. An incident ends when its cause is gone, its senders are retired, or an operator closes the place; that nobody can see it ends nothing."), now, past);
  let all = new Map();
  let due = 0;

  function draw() {
    due = 0;
    const list = inOrder(all.values());
    const open = list.filter(goesOn);
    const parts = list.filter((each) => !each.ended_at_us && each.within);
    const over = list.filter((each) => each.ended_at_us);
    now.replaceChildren(h("h2", {}, open.length ? counted(open.length, "open incident") : "No open incident"), ...open.map((each) => incidentCard(each)), ...(parts.length ? [h("h2", {}, "Part of a wider one"), ...parts.map((each) => incidentCard(each))] : []));
    past.replaceChildren(...(over.length ? [h("h2", {}, "Over")] : []), ...over.map((each) => incidentCard(each)));
  }

  return {
    title: () => "Incidents",
    load: async () => {
      const found = await get("incidents", { limit: 200 });
      all = new Map(found.incidents.map((each) => [each.incident_id, each]));
      draw();
    },
    heard: {
      incident: (incident) => {
        all.set(incident.incident_id, incident);
        due ||= requestAnimationFrame(draw);
      },
    },
    end: () => cancelAnimationFrame(due),
  };
}
