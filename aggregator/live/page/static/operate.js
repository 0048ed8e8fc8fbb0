// Order something of a site or a sender: maintenance, retirement, a registration at the next sighting. With who and why.

import { post, signIn } from "./api.js";
import { hubNow } from "./clock.js";
import { h } from "./dom.js";
import { ZONE, utcBeside, visible } from "./text.js";

const HOUR = 3600 * 1e6;
// A maintenance until then has no end: it closes what it is for.
const NO_END = Date.UTC(2200, 0, 1) * 1000;
const KINDS = {
  maintenance: "Declare maintenance",
  close: "Close it for good: nobody is expected there any more",
  forward: "Have its next registration forwarded",
  retire: "Retire it: it is expected no more",
};

/** Write an instant as a field of a form takes it, on the reader's clock. */
function field(us) {
  const at = new Date(us / 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

const instantOf = (text) => new Date(text).getTime() * 1000;

/** The form, folded; `place` has region and site, and block and sender where it is about one. */
export function operateForm(place) {
  const kinds = place.sender ? ["maintenance", "forward", "retire"] : ["maintenance", "close"];
  const kind = h("select", { id: "kind", onchange: shown }, kinds.map((each) => h("option", { value: each }, KINDS[each])));
  const now = hubNow() || Date.now() * 1000;
  const [from, to] = [time("from", now), time("to", now + HOUR)];
  const author = h("input", { id: "author", required: true, maxlength: 200, autocomplete: "name", value: localStorage.getItem("muster-author") ?? "" });
  const why = h("input", { id: "why", maxlength: 2000 });
  const spans = h("div", { class: "beside span" }, from.label, to.label);
  const said = h("p", { role: "status" });
  const form = h(
    "form",
    { class: "operate", onsubmit: order },
    h("label", { for: "kind" }, "What", kind),
    spans,
    h("label", { for: "author" }, "Who you are", author),
    h("label", { for: "why" }, "Why", why),
    h("button", { type: "submit" }, "Order it"),
    said,
  );

  function time(name, us) {
    const input = h("input", { type: "datetime-local", id: name, required: true, value: field(us), oninput: () => beside() });
    const utc = h("small");
    const beside = () => {
      utc.textContent = input.value ? ` ${utcBeside(instantOf(input.value))}` : "";
    };
    beside();
    return { input, label: h("label", { for: name }, `${name} (${ZONE})`, input, utc) };
  }

  function shown() {
    spans.hidden = !["maintenance", "close"].includes(kind.value);
    to.label.hidden = kind.value === "close";
    for (const each of [from, to]) each.input.disabled = spans.hidden || each.label.hidden;
  }

  async function order(event) {
    event.preventDefault();
    localStorage.setItem("muster-author", author.value);
    const asked = { kind: kind.value, author: author.value, why: why.value, region: place.region, site: place.site };
    if (place.sender) Object.assign(asked, { block: place.block, senders: [place.sender] });
    if (!spans.hidden) Object.assign(asked, { kind: "maintenance", started_at_us: instantOf(from.input.value), ended_at_us: to.label.hidden ? NO_END : instantOf(to.input.value) });
    await send(asked, said);
  }

  return h("details", { class: "operation" }, h("summary", {}, place.sender ? "Operate on this sender" : "Operate on this site"), form);
}

/** A button that takes a maintenance back. */
export function cancelButton(maintenance) {
  const said = h("span", { role: "status" });
  const cancel = () => {
    const author = localStorage.getItem("muster-author");
    if (author) send({ kind: "cancel", revision: maintenance.revision, author }, said);
    else said.textContent = " Say who you are below first.";
  };
  return h("span", {}, " ", h("button", { type: "button", onclick: cancel }, "take it back"), said);
}

async function send(asked, said) {
  said.textContent = "…";
  try {
    const done = await post("operations", asked);
    said.textContent = ` Done, revision ${done.revisions.join(", ")}: ${visible(done.text, 300)}`;
  } catch (error) {
    said.replaceChildren(` ${visible(error.message, 300)} `, error.status === 403 || error.status === 401 ? h("a", { href: signIn() }, "Sign in with a token that may operate") : "");
  }
}
