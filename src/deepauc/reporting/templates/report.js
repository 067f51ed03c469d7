"use strict";
// Tables sort by a click on a column's name: numbers by value, everything else as text; what has no value comes last.
const headings = new Map();
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent || "Row";
    head.replaceChildren(button);
    headings.set(head, button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      const rows = [...body.rows];
      const key = (row) => row.cells[column].dataset.value;
      const numeric = rows.some((row) => key(row) !== undefined);
      const order = (a, b) => numeric ? key(a) - key(b) : a.cells[column].textContent.localeCompare(b.cells[column].textContent);
      const known = rows.filter((row) => !numeric || key(row) !== undefined).sort((a, b) => down ? order(b, a) : order(a, b));
      body.append(...known, ...rows.filter((row) => !known.includes(row)));
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
}
// A browser repeats the header of a long table on each printed page only if it is plain text.
addEventListener("beforeprint", () => headings.forEach((button, head) => head.replaceChildren(button.textContent)));
addEventListener("afterprint", () => headings.forEach((button, head) => head.replaceChildren(button)));
// A link to a folded section opens it.
function unfold() {
  const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const folded = target && (target.querySelector(":scope > details") || target.closest("details"));
  if (folded && !folded.open) {
    folded.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();
