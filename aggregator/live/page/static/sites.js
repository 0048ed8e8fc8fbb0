// All sites as a list; one site with its blocks and senders; senders wherever they are.

import { get, path } from "./api.js";
import { hubNow } from "./clock.js";
import { bar, figures, headline, siteWords, total } from "./fleet.js";
import { h, instant, link, named, senderAddress, shape, siteAddress, siteLink, stateMark } from "./dom.js";
import { goesOn, incidentCard } from "./incidents.js";
import { cancelButton, operateForm } from "./operate.js";
import { longTable } from "./rows.js";
import { duration, number, reason, remedy, visible } from "./text.js";

const STATES = ["stale", "unknown", "maintenance", "up", "retired"];

/** Choices that live in the address, so that what one sees can be sent to another. */
function choices(parameters, { changed, state = true, search = "search by name", extra = [] }) {
  const field = h("input", { type: "search", id: "search", value: parameters.get("search") ?? "", placeholder: search, "aria-label": search, autocomplete: "off", spellcheck: "false", maxlength: 4096 });
  const select = h("select", { "aria-label": "state" }, h("option", { value: "" }, "every state"), STATES.map((each) => h("option", { value: each, selected: parameters.get("state") === each }, each)));
  let soon = 0;
  const take = () => {
    const address = new URL(location.href);
    for (const [name, value] of [["search", field.value], ["state", state ? select.value : ""]]) {
      if (value) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    }
    history.replaceState(null, "", address);
    changed({ search: field.value, state: select.value });
  };
  field.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(take, 200);
  });
  select.addEventListener("change", take);
  const form = h("form", { class: "choices", role: "search", onsubmit: (event) => event.preventDefault() }, field, state ? select : null, extra);
  return { form, chosen: () => ({ search: field.value, state: state ? select.value : "" }) };
}

const COLUMNS = {
  state: { title: "State", class: "state-cell", cell: (row) => stateMark(row.state) },
  sender: { title: "Sender", class: "name-cell", cell: (row) => link(senderAddress(row), named(row.sender)) },
  place: { title: "Site", class: "site-cell", cell: siteLink },
  since: { title: "Since", class: "time-cell", cell: (row) => instant(row.since_us) },
  seen: { title: "Last heard", class: "time-cell spare", cell: (row) => (row.last_state === "up" ? "" : instant(row.last_seen_us)) },
  why: { title: "Why", class: "spare", cell: (row) => (row.reason ? `${reason(row.reason)}; was ${row.last_state}` : "") },
};

function senderRows(label, columns, parameters) {
  return longTable({
    label,
    columns,
    empty: "No sender is like that.",
    load: async (offset, limit, signal) => {
      const page = await get("senders", { ...parameters(), offset, limit }, signal);
      return { rows: page.senders, total: page.total };
    },
  });
}

export function sendersPage(root, { parameters, reload }) {
  const { form, chosen } = choices(parameters, { search: "search all senders", changed: () => rows.restart() });
  const rows = senderRows("Senders", Object.values(COLUMNS), chosen);
  root.append(h("h1", {}, "Senders"), form, rows.root);
  let due = 0;
  return {
    title: () => "Senders",
    load: async () => rows.refresh(),
    heard: {
      site: () => {
        due ||= setTimeout(() => {
          due = 0;
          reload();
        }, 2000);
      },
    },
    end: () => {
      clearTimeout(due);
      rows.end();
    },
  };
}

export function sitesPage(root, { parameters, reload }) {
  const region = h("select", { "aria-label": "region", onchange: () => rows.restart() }, h("option", { value: "" }, "every region"));
  const { form, chosen } = choices(parameters, { search: "search sites", changed: () => rows.restart(), extra: region });
  const columns = [
    { title: "State", class: "state-cell shape-cell", cell: (site) => stateMark(site.state) },
    { title: "Site", class: "name-cell", cell: (site) => link(siteAddress(site.region, site.site), named(site.site, 60)) },
    { title: "Region", class: "region-cell spare", cell: (site) => named(site.region, 40) },
    { title: "What", class: "what-cell", cell: (site) => siteWords(site) },
    { title: "Senders", class: "figure spare", cell: (site) => number(total(site.counts)) },
    { title: "Since", class: "time-cell", cell: (site) => instant(site.since_us) },
    { title: "Known until", class: "time-cell spare", cell: (site) => instant(site.known_until_us) },
  ];
  const rows = longTable({
    label: "Sites, those in trouble first",
    columns,
    empty: "No site is like that.",
    load: async (offset, limit, signal) => {
      const page = await get("sites", { ...chosen(), region: region.value, sort: "trouble", offset, limit }, signal);
      return { rows: page.sites, total: page.total };
    },
  });
  root.append(h("h1", {}, "Sites"), form, rows.root);
  let due = 0;
  return {
    title: () => "Sites",
    load: async () => {
      const fleet = await get("fleet");
      const held = region.value || parameters.get("region") || "";
      region.replaceChildren(h("option", { value: "" }, "every region"), ...fleet.regions.map((each) => h("option", { value: each.region, selected: each.region === held }, each.region)));
      await rows.refresh();
    },
    heard: {
      site: () => {
        due ||= setTimeout(() => {
          due = 0;
          reload();
        }, 1000);
      },
    },
    end: () => {
      clearTimeout(due);
      rows.end();
    },
  };
}

function blockRow(block) {
  return h(
    "tr",
    {},
    h("td", {}, named(block.block, 40)),
    h("td", {}, block.is_gone ? stateMark("retired", "nobody expected") : block.reason ? stateMark("unknown", reason(block.reason)) : stateMark("up", "known")),
    h("td", {}, instant(block.observed_since_us)),
    h("td", {}, instant(block.known_until_us)),
    h("td", {}, instant(block.heard_at_us)),
    h("td", { class: "figure" }, number(total(block.counts))),
    h("td", {}, named([block.agent, block.version].filter(Boolean).join(" "), 40)),
  );
}

export function sitePage(root, { parts: [region, name], parameters, reload }) {
  const title = h("h1", {}, shape("unknown"), " ", named(name, 60));
  const said = h("p", { class: "trust" });
  const why = h("div");
  const numbers = h("div", { class: "numbers" });
  const blocks = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "stream blocks" });
  const { form, chosen } = choices(parameters, { search: "search this site's senders", changed: () => rows.restart() });
  const columns = [COLUMNS.state, COLUMNS.sender, COLUMNS.since, COLUMNS.seen, COLUMNS.why];
  const rows = senderRows(`Senders of ${name}, those in trouble first`, columns, () => ({ region, site: name, ...chosen() }));
  // How far a site is known moves on all the time, and is no event.
  const asking = setInterval(() => get(`sites/${path(region, name)}`).then(take, () => {}), 5000);
  root.append(
    h("nav", { class: "crumbs", "aria-label": "where this is" }, link("/", "Fleet"), " / ", link(`/sites?${new URLSearchParams({ region })}`, named(region, 40))),
    title,
    said,
    why,
    numbers,
    h("section", { "aria-labelledby": "senders" }, h("h2", { id: "senders" }, "Senders"), form, rows.root),
    operateForm({ region, site: name }),
    h("section", { "aria-labelledby": "blocks" }, h("h2", { id: "blocks" }, "Who watches"), blocks),
  );
  let site = null;
  let open = [];
  let due = 0;

  function draw() {
    if (!site) return;
    title.replaceChildren(shape(site.state), " ", named(site.site, 60), ": ", h("span", {}, site.state === "unknown" ? "unknown" : headline(site.counts)));
    numbers.replaceChildren(figures(site.counts, `${location.pathname}?state=`), bar(site.counts));
    const mine = open.filter((each) => each.region === region && (each.site === name || !each.site) && (each.site ? each.cause !== "unknown" : each.nodes.includes(name)));
    const remark = site.state === "retired" ? "" : site.reason ? h("p", { class: "note is-unknown" }, shape("unknown"), h("span", {}, h("b", {}, `${reason(site.reason)} `), "since ", instant(site.known_until_us), `. ${remedy(site.reason)}`, conditions(), " What was true until then is shown as it was; whether it still is, nobody knows.")) : "";
    why.replaceChildren(remark, ...planned(), ...mine.map((each) => incidentCard(each, "h2")));
    blocks.replaceChildren(
      h("table", { class: "data" }, h("caption", { class: "unseen" }, "Stream blocks of the site"), h("thead", {}, h("tr", {}, ["Block", "State", "Watched since", "Known until", "Heard at the hub", "Senders", "Agent"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, site.blocks.map(blockRow))),
    );
    tick();
  }

  function conditions() {
    const said = [...new Set(site.blocks.map((block) => block.condition).filter(Boolean))];
    return said.length ? [" In its words: ", h("b", {}, visible(said.join(", ").replaceAll("_", " "), 200)), "."] : "";
  }

  function take(changed) {
    site = changed;
    draw();
  }

  function planned() {
    return site.blocks.filter((block) => block.maintenance).map(({ block, is_gone: gone, maintenance }) =>
      gone ? h("p", { class: "note" }, shape("retired"), h("span", {}, h("b", {}, `${block} is closed `), "since ", instant(maintenance.started_at_us), ": ", named(maintenance.reason, 200), " (", named(maintenance.author, 60), "). Nobody is expected there.", cancelButton(maintenance))) :
      h("p", { class: "note is-maintenance" }, shape("maintenance"), h("span", {}, h("b", {}, `Maintenance of ${block} `), "from ", instant(maintenance.started_at_us), " to ", instant(maintenance.ended_at_us), ": ", named(maintenance.reason, 200), " (", named(maintenance.author, 60), ")", cancelButton(maintenance))),
    );
  }

  function tick() {
    if (!site) return;
    const age = hubNow() - site.known_until_us;
    said.replaceChildren("Known until ", instant(site.known_until_us), site.known_until_us && age > 0 ? ` (${duration(age)} ago)` : "", "; last change ", instant(site.changed_at_us));
  }

  return {
    title: () => (site ? `${name}: ${site.state}` : name),
    tick,
    load: async () => {
      const [found, incidents] = await Promise.all([get(`sites/${path(region, name)}`), get("incidents"), rows.refresh()]);
      open = incidents.incidents.filter(goesOn);
      take(found);
    },
    heard: {
      site: (changed) => {
        if (changed.region !== region || changed.site !== name) return;
        take(changed);
        due ||= setTimeout(() => {
          due = 0;
          reload();
        }, 500);
      },
      incident: (incident) => {
        open = open.filter((each) => each.incident_id !== incident.incident_id);
        if (goesOn(incident)) open.push(incident);
        draw();
      },
    },
    end: () => {
      clearInterval(asking);
      clearTimeout(due);
      rows.end();
    },
  };
}
