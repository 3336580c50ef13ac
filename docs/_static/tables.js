// Tells each cell of a table with many columns its column's title. On a phone, pages.css
// shows such a table row by row, with these titles. Without this script it scrolls.
for (const table of document.querySelectorAll("table.docutils")) {
  const titles = Array.from(table.querySelectorAll("thead th"), (th) => th.textContent.trim());
  if (titles.length > 2 && !table.querySelector("[rowspan], [colspan]")) {
    table.classList.add("by-rows");
    for (const row of table.tBodies[0].rows) {
      Array.from(row.cells).forEach((cell, n) => (cell.dataset.title = titles[n]));
    }
  }
}
