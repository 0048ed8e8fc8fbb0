// One sender's story: what it is, since when, what was said of it, and when nobody could see it.

import { get } from "./api.js";
import { sentence } from "./advisories.js";
import { hubNow } from "./clock.js";
import { strip } from "./curve.js";
import { h, instant, link, named, shape, siteAddress, stateMark } from "./dom.js";
import { cancelButton, operateForm } from "./operate.js";
import { duration, number, reason, remedy, visible } from "./text.js";

const SPAN = 24 * 3600 * 1e6;

export function senderPage(root, { parameters, reload }) {
  const [region, site, block, sender] = ["region", "site", "block", "sender"].map((name) => parameters.get(name) ?? "");
  const title = h("h1", {}, named(sender));
  const facts = h("dl", { class: "facts" });
  const why = h("div");
  const time = h("div");
  const list = h("ul", { class: "told" });
  const sample = h("div", {}, h("button", { type: "button", onclick: askFacts }, "Show the last sample"));
  root.append(
    h("nav", { class: "crumbs", "aria-label": "where this is" }, link("/", "Fleet"), " / ", link(`/sites?${new URLSearchParams({ region })}`, named(region, 40)), " / ", link(siteAddress(region, site), named(site, 40))),
    title,
    why,
    facts,
    operateForm({ region, site, block, sender }),
    h("section", { "aria-labelledby": "time" }, h("h2", { id: "time" }, "Its time"), time),
    h("section", { "aria-labelledby": "facts" }, h("h2", { id: "facts" }, "Its last facts"), sample),
    h("section", { "aria-labelledby": "story" }, h("h2", { id: "story" }, "Its story"), list),
  );
  let story = null;
  let due = 0;

  function draw() {
    const row = story.sender;
    title.replaceChildren(shape(row.state), " ", named(row.sender), ": ", h("span", {}, row.state));
    const age = hubNow() - row.since_us;
    facts.replaceChildren(
      ...fact("State", stateMark(row.state)),
      ...fact("Since", h("span", {}, instant(row.since_us), age > 0 ? ` (${duration(age)})` : "")),
      ...(row.last_state === "up" ? [] : fact("Last heard", instant(row.last_seen_us))),
      ...fact("Known until", instant(row.known_until_us)),
      ...fact("Stream block", h("span", {}, named(block, 40), story.block.agent ? [", watched by ", named(story.block.agent, 40)] : "")),
    );
    why.replaceChildren(
      row.reason ? h("p", { class: "note is-unknown" }, shape("unknown"), h("span", {}, h("b", {}, `${reason(row.reason)}. `), remedy(row.reason), ` It was ${row.last_state} when it was last known.`)) : "",
      ...story.maintenance.filter(holds).map((each) => h("p", { class: "note is-maintenance" }, shape("maintenance"), h("span", {}, maintenanceWords(each), cancelButton(each)))),
    );
    drawTime();
    const told = [
      ...story.advisories.map((each) => [each.at_us, sentence(each, { withSender: false })]),
      ...story.gaps.map((gap) => [gap.started_at_us, gapItem(gap)]),
      ...story.maintenance.filter((each) => !holds(each)).map((each) => [each.started_at_us, maintenanceItem(each)]),
      ...story.orders.map((order) => [order.given_at_us, orderItem(order)]),
    ];
    list.replaceChildren(...told.sort((a, b) => b[0] - a[0]).map(([, item]) => item));
  }

  async function askFacts() {
    sample.replaceChildren(h("p", { role: "status" }, "The hub's archive is asked…"));
    try {
      const found = await get("facts", { region, site, block, sender });
      const all = found.size > new TextEncoder().encode(found.text).length ? `, the first ${number(found.text.length)} letters` : "";
      sample.replaceChildren(
        h("p", {}, "As the hub stored it ", instant(found.archived_at_us), ` (${found.reason ? `${visible(found.reason, 40)}, ` : ""}${number(found.size)} bytes${all})`),
        h("pre", { class: "sample", tabindex: 0, role: "region", "aria-label": "the last sample" }, inLines(found.text)),
      );
    } catch (error) {
      sample.replaceChildren(h("p", { role: "status" }, visible(error.message, 300)));
    }
  }

  function drawTime() {
    const to = hubNow() || story.sender.known_until_us;
    const oldest = Math.min(...story.advisories.map((each) => each.at_us), to - 60e6);
    time.replaceChildren(strip(story.advisories, story.gaps, Math.max(oldest, to - SPAN), to, Math.max(280, time.clientWidth)) ?? "");
  }

  const resized = new ResizeObserver(() => story && drawTime());
  resized.observe(time);

  return {
    title: () => `${visible(sender, 60)}${story ? `: ${story.sender.state}` : ""}`,
    load: async () => {
      story = await get("story", { region, site, block, sender });
      draw();
    },
    heard: {
      site: (changed) => {
        if (changed.region !== region || changed.site !== site) return;
        due ||= setTimeout(() => {
          due = 0;
          reload();
        }, 500);
      },
    },
    end: () => {
      clearTimeout(due);
      resized.disconnect();
    },
  };
}

/** Choria's adapters wrap a registration into a text: show the JSON in it. */
function unfolded(key, value) {
  if (key !== "data" || typeof value !== "string" || !/^[{[]/.test(value)) return value;
  try {
    return JSON.parse(value);
  } catch {
    return value;
  }
}

/** Write a body as lines, each with what hides or turns a text written out. */
function inLines(text) {
  let lines = text;
  try {
    lines = JSON.stringify(JSON.parse(text, unfolded), null, 2);
  } catch {
    // It is shown as it is.
  }
  return lines.split("\n").map((line) => visible(line, 0)).join("\n");
}

const holds = (maintenance) => !maintenance.cancelled_at_us && maintenance.started_at_us <= hubNow() && hubNow() < maintenance.ended_at_us;
const maintenanceWords = (each) => [h("b", {}, "maintenance"), " declared from ", instant(each.started_at_us), " to ", instant(each.ended_at_us), ": ", named(each.reason || "no reason given", 200), " (", named(each.author || "nobody named", 60), ")", each.cancelled_at_us ? ["; cancelled ", instant(each.cancelled_at_us), " by ", named(each.cancelled_by || "nobody named", 60)] : ""];
const maintenanceItem = (each) => h("li", { class: "is-maintenance" }, shape("maintenance"), h("span", {}, maintenanceWords(each)), instant(each.started_at_us));
const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

const gapItem = (gap) =>
  h(
    "li",
    { class: "is-unknown" },
    shape("unknown"),
    h("span", {}, h("b", {}, "nobody could see it"), ` (${reason(gap.reason)})`, gap.ended_at_us ? [" until ", instant(gap.ended_at_us), ` (${duration(gap.ended_at_us - gap.started_at_us)})`] : ", still"),
    instant(gap.started_at_us),
  );

const orderItem = (order) =>
  h("li", { class: "is-maintenance" }, shape("maintenance"), h("span", {}, h("b", {}, order.kind.replaceAll("_", " ")), " ordered by ", named(order.author, 60), order.text ? [": ", named(order.text, 200)] : ""), instant(order.given_at_us));
