// Make elements. Texts become text nodes and never markup; styles are set through properties, as the policy asks.

import { ZONE, inUtc, iso, local, utcBeside, visible } from "./text.js";
import { hubNow } from "./clock.js";

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "size") for (const [key, length] of Object.entries(value)) element.style.setProperty(key, length);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return element;
}

export const h = (name, properties, ...children) => fill(document.createElement(name), properties, children);
export const s = (name, properties, ...children) => fill(document.createElementNS(SVG, name), properties, children);

/** Replace what an element holds, only where it is different, so that focus and selection stay. */
export function show(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A shape for each state, so that colour is never alone.
const SHAPES = {
  up: () => [s("circle", { cx: 8, cy: 8, r: 5.5 })],
  stale: () => [s("path", { d: "M8 1.5 15 14H1Z" }), s("path", { d: "M8 6v4M8 11.4v1.2", class: "inside" })],
  unknown: () => [
    s("rect", { x: 2, y: 2, width: 12, height: 12, rx: 2, class: "dashed" }),
    s("path", { d: "M6 6.3a2 2 0 1 1 2.8 1.9c-.6.3-.8.7-.8 1.2M8 11v1", class: "line" }),
  ],
  maintenance: () => [s("path", { d: "M8 1 15 8 8 15 1 8Z" }), s("path", { d: "M6.4 5.6v4.8M9.6 5.6v4.8", class: "inside" })],
  retired: () => [s("circle", { cx: 8, cy: 8, r: 5, class: "line" }), s("path", { d: "M4.5 11.5l7-7", class: "line" })],
};

export const shape = (state) =>
  s("svg", { viewBox: "0 0 16 16", class: `shape is-${state}`, "aria-hidden": "true" }, (SHAPES[state] ?? SHAPES.unknown)());

/** A state: its shape and its word. */
export const stateMark = (state, word = state) => h("span", { class: `state is-${state}` }, shape(state), word);

/** Something that another wrote: escaped and bounded, whole (up to 4 kB) in its title. */
export function named(text, most) {
  // A name of blanks would leave nothing to see or to follow.
  const shown = /^\p{Zs}+$/u.test(text) ? visible(Array.from(text, (each) => `\\u${each.codePointAt(0).toString(16).padStart(4, "0")}`).join(""), most) : visible(text, most);
  return h("span", { class: "name", dir: "ltr", title: shown === text ? null : visible(text, 4096) }, shown);
}

/** An instant on the reader's clock, and in UTC beside it. */
export function instant(us, { both = true } = {}) {
  if (!us) return h("span", { class: "soft" }, "never");
  const now = hubNow() || us;
  if (inUtc(us)) return h("time", { datetime: iso(us) }, local(us, now), h("small", {}, " UTC"));
  return h("time", { datetime: iso(us), title: `${iso(us)} (${ZONE}: ${local(us)})` }, local(us, now), both && h("small", {}, ` ${utcBeside(us)}`));
}

export const link = (address, ...children) => h("a", { href: address }, ...children);
const part = encodeURIComponent;
export const siteAddress = (region, site) => `/sites/${part(region)}/${part(site)}`;
/** A site by its whole name: two regions may have one of the same. */
export const siteLink = ({ region, site }) => link(siteAddress(region, site), named(`${region}.${site}`, 80));
export const senderAddress = (row) =>
  `/sender?${new URLSearchParams({ region: row.region, site: row.site, block: row.block, sender: row.sender })}`;
