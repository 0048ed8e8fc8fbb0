// Show a long table through a window: a real table in a bounded box, of which only the rows in sight exist.
//
// Rows are asked for by their place, a page at a time; assistive technology learns the place of each from aria-rowindex.

import { AGAIN, isPassing } from "./api.js";
import { h, show } from "./dom.js";
import { number } from "./text.js";

const PAGE = 200;
const MARGIN = 12;
const MOST_PAGES = 40;
// Who drags the bar flies over pages that need not be asked for.
const HURRY = 60;
// Browsers lay nothing out beyond some ten million pixels: longer tables scroll in larger steps.
const TALLEST = 8_000_000;

/**
 * columns: [{title, cell(row) -> nodes, class}]; load(offset, limit, signal) -> {rows, total}.
 */
export function longTable({ label, columns, load, empty = "Nothing." }) {
  const body = h("tbody");
  const head = h("tr", { "aria-rowindex": 1 }, columns.map((column) => h("th", { scope: "col", class: column.class }, column.title)));
  const table = h("table", { class: "data rows" }, h("caption", { class: "unseen" }, label), h("thead", {}, head), body);
  const box = h("div", { class: "window", tabindex: 0, role: "region", "aria-label": label }, table);
  const said = h("p", { class: "soft said", "aria-live": "polite" });
  const root = h("div", { class: "long" }, said, box);
  const [above, below] = [spacer(), spacer()];
  let pages = new Map();
  let total = 0;
  let height = 34;
  let asked = new AbortController();
  let drawn = "";
  let failed = null;
  let fetching = 0;

  function spacer() {
    return h("tr", { class: "space", "aria-hidden": "true" }, h("td"));
  }

  const room = () => Math.max(1, Math.ceil(box.clientHeight / height));
  const scale = () => Math.max(1, (total * height) / TALLEST);

  function first() {
    const tallest = Math.max(1, (total * height) / scale() - box.clientHeight);
    if (scale() === 1) return Math.floor(box.scrollTop / height);
    return Math.floor((box.scrollTop / tallest) * Math.max(0, total - room()));
  }

  function row(at) {
    return pages.get(Math.floor(at / PAGE))?.[at % PAGE];
  }

  /** Give the numbers of the pages in sight. */
  function inSight() {
    const from = Math.max(0, first() - MARGIN);
    const to = Math.max(from, Math.min(total, from + room() + 2 * MARGIN) - 1);
    const [begin, end] = [Math.floor(from / PAGE), Math.floor(to / PAGE)];
    return Array.from({ length: end - begin + 1 }, (_, at) => begin + at);
  }

  function fetchInSight() {
    fetching = 0;
    for (const index of inSight()) fetchPage(index);
  }

  /** Forget a failure, and the wait that it caused. */
  function accept() {
    if (failed) clearTimeout(fetching);
    if (failed) fetching = 0;
    failed = null;
  }

  async function fetchPage(index, fresh = false) {
    if (pages.has(index) && !fresh) return;
    if (!pages.has(index)) pages.set(index, []);
    const { signal } = asked;
    try {
      const answer = await load(index * PAGE, PAGE, signal);
      if (signal.aborted) return;
      accept();
      pages.set(index, answer.rows);
      total = answer.total;
      for (const known of pages.keys()) {
        if (pages.size <= MOST_PAGES) break;
        if (known !== index) pages.delete(known);
      }
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return;
      failed = error;
      if (!pages.get(index)?.length) pages.delete(index);
    }
    drawn = "";
    draw();
    if (failed && fresh) throw failed;
  }

  function draw() {
    const from = Math.max(0, Math.min(first() - MARGIN, total - 1));
    const to = Math.min(total, from + room() + 2 * MARGIN);
    // A service that fails is not asked again at once.
    if (!pages.size && !failed) fetchPage(0);
    else if (!failed) fetching ||= setTimeout(fetchInSight, HURRY);
    else if (isPassing(failed)) fetching ||= setTimeout(fetchInSight, AGAIN);
    show(said, failed ? failed.message : total ? `${number(total)} in all` : pages.get(0) ? empty : "Loading…");
    table.setAttribute("aria-rowcount", total + 1);
    const now = `${from} ${to}`;
    if (now === drawn) return;
    drawn = now;
    const held = document.activeElement?.closest?.("tr")?.getAttribute("aria-rowindex");
    const focused = held && body.contains(document.activeElement);
    const rows = [];
    for (let at = from; at < to; at += 1) rows.push(written(at));
    const top = scale() === 1 ? from * height : Math.max(0, box.scrollTop - (first() - from) * height);
    above.firstChild.style.height = `${top}px`;
    below.firstChild.style.height = `${Math.max(0, Math.min(total * height, TALLEST) - top - rows.length * height)}px`;
    body.replaceChildren(above, ...rows, below);
    if (focused) body.querySelector(`[aria-rowindex="${held}"] a`)?.focus({ preventScroll: true }) ?? box.focus({ preventScroll: true });
    measure(rows[0]);
  }

  function written(at) {
    const data = row(at);
    const cells = columns.map((column) => h("td", { class: column.class }, data ? column.cell(data) : "…"));
    return h("tr", { "aria-rowindex": at + 2, class: data ? null : "awaited" }, cells);
  }

  function measure(one) {
    const found = one?.getBoundingClientRect().height;
    if (found && Math.abs(found - height) > 0.5) {
      height = found;
      drawn = "";
      requestAnimationFrame(draw);
    }
  }

  let waiting = false;
  box.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  });
  const watched = new ResizeObserver(() => draw());
  watched.observe(box);

  return {
    root,
    /** Begin anew: what is asked for has changed. */
    restart() {
      asked.abort();
      asked = new AbortController();
      accept();
      pages = new Map();
      total = 0;
      drawn = "";
      box.scrollTop = 0;
      draw();
    },
    /** Ask again for what is in sight: it may have changed. Where one has scrolled to stays. Rejects if an answer failed. */
    refresh() {
      const seen = inSight();
      for (const index of [...pages.keys()]) if (!seen.includes(index)) pages.delete(index);
      return Promise.all(seen.map((index) => fetchPage(index, true)));
    },
    end() {
      asked.abort();
      clearTimeout(fetching);
      watched.disconnect();
    },
  };
}
