// Draw the fleet over the last hours: bands on top of each other, what nobody knew hatched, the figures in a table behind.

import { h, instant, s } from "./dom.js";
import { iso, local, number } from "./text.js";

const BANDS = ["up", "maintenance", "stale", "unknown"];
const MOST_ROWS = 48;
const STEPS = [60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800].map((seconds) => seconds * 1e6);

const total = (point, bands) => bands.reduce((sum, band) => sum + point.counts[band], 0);

function ceiling(most) {
  for (let power = 1; ; power *= 10) for (const factor of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8]) if (factor * power >= most) return Math.ceil(factor * power);
}

/** Cut where nothing was recorded: a time without a record is no time of the state before. */
function runs(points) {
  const gaps = points.slice(1).map((point, at) => point.at_us - points[at].at_us).sort((a, b) => a - b);
  const longest = 4 * (gaps[Math.floor(gaps.length / 2)] ?? 0) + 1e6;
  const cut = [[]];
  points.forEach((point, at) => {
    if (at && point.at_us - points[at - 1].at_us > longest) cut.push([]);
    cut.at(-1).push(point);
  });
  return cut;
}

function plot(points, bands, title, width, height) {
  const [begin, end] = [points[0].at_us, points.at(-1).at_us];
  const top = ceiling(Math.max(1, ...points.map((point) => total(point, bands))));
  const x = (at) => ((at - begin) / Math.max(1, end - begin)) * width;
  const y = (value) => height - (value / top) * height;
  const shapes = [];
  for (const run of runs(points)) {
    let below = run.map(() => 0);
    for (const band of bands) {
      const above = run.map((point, at) => below[at] + point.counts[band]);
      if (above.some((value, at) => value > below[at])) {
        const there = above.map((value, at) => `${at ? `H${x(run[at].at_us).toFixed(1)}` : `M${x(run[0].at_us).toFixed(1)} `}${at ? "V" : ""}${y(value).toFixed(1)}`).join("");
        const back = below.map((value, at) => [value, at]).reverse().map(([value, at], place) => `${place ? "" : `L${x(run[at].at_us).toFixed(1)} `}${place ? "V" : ""}${y(value).toFixed(1)}H${x(run[at].at_us).toFixed(1)}`).join("");
        shapes.push(s("path", { d: `${there}${back}Z`, class: `band is-${band}` }));
        if (band === "unknown") shapes.push(s("path", { d: `${there}${back}Z`, fill: "url(#hatch)" }));
      }
      below = above;
    }
  }
  const step = STEPS.find((each) => (end - begin) / each <= Math.max(2, width / 110)) ?? STEPS.at(-1);
  const ticks = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) ticks.push(at);
  return h(
    "figure",
    { class: "plot" },
    h("figcaption", {}, title),
    s(
      "svg",
      { width, height: height + 18, viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": `${title}; the figures are in the table below` },
      hatching(),
      shapes,
      [0, 0.5, 1].map((share) => s("path", { d: `M0 ${(height * (1 - share)).toFixed(1)}H${width}`, class: "grid" })),
      [0.5, 1].map((share) => s("text", { x: 4, y: height * (1 - share) + 12, class: "height" }, number(top * share))),
      ticks.map((at) => s("path", { d: `M${x(at).toFixed(1)} ${height}v4`, class: "tick" })),
      ticks.map((at) => s("text", { x: Math.min(width - 30, Math.max(0, x(at) - 14)), y: height + 16, class: "at" }, local(at, step >= 86400e6 ? 0 : at).slice(0, step >= 86400e6 ? -10 : 5))),
      points.length < 600 && points.slice(1).map((point, at) => target(points[at], x(points[at].at_us), x(point.at_us), height)),
    ),
  );
}

const hatching = () =>
  s("defs", {}, s("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, s("rect", { width: 2.5, height: 7, class: "stripe" })));

function target(point, left, right, height) {
  const told = `${local(point.at_us)}: ${BANDS.map((band) => `${number(point.counts[band])} ${band}`).join(", ")}`;
  return s("rect", { x: left, width: Math.max(0.5, right - left), y: 0, height, class: "target" }, s("title", {}, told));
}

/** Draw `points`, and once more what is not up where that is little of the whole. */
export function curve(points, width) {
  if (points.length < 2) return h("p", { class: "soft" }, "The curve begins when the hub has watched for a minute.");
  const plots = [plot(points, BANDS, "All senders", width, 130)];
  const others = BANDS.slice(1);
  const most = Math.max(...points.map((point) => total(point, others)));
  if (most > 0 && most < 0.4 * Math.max(...points.map((point) => total(point, BANDS)))) {
    plots.push(plot(points, others, "Only those that were not up", width, 70));
  }
  const every = Math.ceil(points.length / MOST_ROWS);
  const shown = points.filter((_, at) => at % every === 0 || at === points.length - 1).reverse();
  const table = h(
    "table",
    { class: "data" },
    h("caption", { class: "unseen" }, "Senders by state over time"),
    h("thead", {}, h("tr", {}, ["at", ...BANDS, "retired"].map((name) => h("th", { scope: "col", class: name === "at" ? null : "figure" }, name)))),
    h("tbody", {}, shown.map((point) => h("tr", {}, h("td", {}, instant(point.at_us)), [...BANDS, "retired"].map((band) => h("td", { class: "figure" }, number(point.counts[band])))))),
  );
  return h("div", {}, legend(), plots, h("details", {}, h("summary", {}, "The figures behind the curve"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "figures" }, table)));
}

const legend = () => h("ul", { class: "legend" }, BANDS.map((band) => h("li", {}, h("span", { class: `swatch is-${band}`, "aria-hidden": "true" }), band === "unknown" ? "unknown: nobody could see" : band)));

const KIND = { new: "up", recovered: "up", stale: "stale", retired: "retired" };

// Whoever is stale has been so since it was heard last, as tables and lists count it; a life that an operator ended, too.
const heldSince = (advisory, before) => (advisory.kind === "stale" || advisory.by_operator ? Math.max(advisory.last_seen_us, before?.at_us ?? 0) : advisory.at_us);

/** Draw one sender's time: its states by its advisories, and over them what nobody knew. */
export function strip(advisories, gaps, from, to, width) {
  if (to <= from) return null;
  const height = 26;
  const x = (at) => ((Math.min(to, Math.max(from, at)) - from) / (to - from)) * width;
  const ordered = [...advisories].sort((a, b) => a.at_us - b.at_us);
  const begins = ordered.map((advisory, at) => heldSince(advisory, ordered[at - 1]));
  const parts = ordered.map((advisory, at) => [KIND[advisory.kind], begins[at], begins[at + 1] ?? to]);
  const piece = (name, begin, end, extra) =>
    x(end) > x(begin) && s("rect", { x: x(begin).toFixed(1), width: Math.max(1, x(end) - x(begin)).toFixed(1), y: 0, height, ...extra, class: `band is-${name}` }, s("title", {}, `${name} from ${iso(begin)} to ${iso(end)}`));
  return s(
    "svg",
    { width, height: height + 18, viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": "Its states over time; the list below says the same in words", class: "strip" },
    hatching(),
    parts.map(([name, begin, end]) => piece(name, begin, end)),
    gaps.map((gap) => piece("unknown", gap.started_at_us, gap.ended_at_us || to)),
    gaps.map((gap) => s("rect", { x: x(gap.started_at_us), width: Math.max(1, x(gap.ended_at_us || to) - x(gap.started_at_us)), y: 0, height, fill: "url(#hatch)" })),
    s("text", { x: 0, y: height + 14, class: "at" }, local(from, to)),
    s("text", { x: width, y: height + 14, class: "at end" }, "now"),
  );
}
