"use strict";
// The page is whole without this: it only sorts tables and tells, where there is no mouse, what a cell holds.
for (const table of document.querySelectorAll("table.sortable")) {
  const titles = table.tHead.rows[0].cells;
  for (const [index, title] of [...titles].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const up = title.getAttribute("aria-sort") !== "ascending";
      for (const other of titles) other.removeAttribute("aria-sort");
      title.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[index].dataset.sort ?? row.cells[index].textContent;
      const compare = (a, b) => key(a).localeCompare(key(b), "en", { numeric: true });
      const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
      table.tBodies[0].append(...rows);
    });
  }
}
// A long time begins where little is told: the latest is what people look for.
for (const map of document.querySelectorAll("#map > .scroll")) map.scrollLeft = map.scrollWidth;
const told = document.querySelector(".told");
document.querySelector("#map")?.addEventListener("click", (event) => {
  const cell = event.target.closest("td[title]");
  if (!cell || !told) return;
  told.hidden = false;
  told.textContent = cell.title;
});
