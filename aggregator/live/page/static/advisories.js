// What agents said of senders, the latest first.

import { get } from "./api.js";
import { h, instant, link, named, senderAddress, shape, siteLink } from "./dom.js";

const KINDS = { new: ["up", "is new"], stale: ["stale", "is stale"], recovered: ["up", "is back"], retired: ["retired", "is retired"] };
const PAGE = 100;

/** One advisory as a sentence in a list. */
export function sentence(advisory, { withSender = true } = {}) {
  const [state, said] = KINDS[advisory.kind] ?? ["unknown", advisory.kind];
  const how = advisory.by_operator ? " by an operator" : advisory.rebuilt ? " (its agent lost its store)" : advisory.unheard_until_us ? " (it could not be heard)" : "";
  const seen = advisory.kind === "stale" || advisory.kind === "recovered" ? [", ", advisory.kind === "stale" ? "last heard " : "heard before that ", instant(advisory.last_seen_us)] : [];
  return h(
    "li",
    { class: `is-${state}` },
    shape(state),
    h("span", {}, withSender ? [link(senderAddress(advisory), named(advisory.sender, 60)), " ", said] : h("b", {}, said), how, withSender ? [" at ", siteLink(advisory)] : "", h("span", { class: "soft" }, seen)),
    instant(advisory.at_us),
  );
}

export function advisoriesPage(root) {
  const list = h("ul", { class: "told" });
  const more = h("button", { type: "button", onclick: () => older() }, "older");
  const held = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => load() });
  root.append(h("h1", {}, "Advisories"), h("p", { class: "lead" }, "What agents said of their senders. Each is dated when it became true, which may be long before it arrived here."), held, list, more);
  let before = 0;
  let waiting = 0;

  async function load() {
    const page = await get("advisories", { limit: PAGE });
    list.replaceChildren(...page.advisories.map((each) => sentence(each)));
    ({ before } = page);
    more.hidden = !before;
    waiting = 0;
    held.hidden = true;
  }

  async function older() {
    const page = await get("advisories", { before, limit: PAGE });
    list.append(...page.advisories.map((each) => sentence(each)));
    ({ before } = page);
    more.hidden = !before;
  }

  return {
    title: () => "Advisories",
    load,
    heard: {
      advisory: (advisory) => {
        // What one reads must not move away: who has scrolled is told of what is new.
        if (scrollY < 200) {
          list.prepend(sentence(advisory));
          while (list.children.length > 10 * PAGE) list.lastChild.remove();
          return;
        }
        waiting += 1;
        held.hidden = false;
        held.textContent = `${waiting} new: show them`;
      },
    },
  };
}
