"use strict";
(() => {
  // A column is sorted by the numbers of its cells where they have some, else by their words; what has none goes last.
  const value = (cell) => (cell.dataset.value === undefined ? null : Number(cell.dataset.value));
  const compare = (one, other, up) => {
    const a = value(one), b = value(other);
    if (a === null || b === null) {
      if (a !== null || b !== null) return a === null ? 1 : -1;
      const words = one.textContent.localeCompare(other.textContent, "en", { numeric: true });
      return up ? words : -words;
    }
    return up ? a - b : b - a;
  };
  for (const button of document.querySelectorAll(".sort")) {
    button.addEventListener("click", () => {
      const heading = button.closest("th");
      const table = button.closest("table");
      const column = heading.cellIndex;
      const up = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], up));
      body.append(...rows);
    });
  }
  for (const button of document.querySelectorAll("[data-open]")) {
    button.addEventListener("click", () => {
      for (const one of button.closest("section").querySelectorAll("details")) one.open = button.dataset.open === "true";
    });
  }
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      const status = button.parentElement.querySelector("[role=status]");
      try {
        await navigator.clipboard.writeText(source.textContent);
        status.textContent = "Copied.";
      } catch {
        getSelection().selectAllChildren(source);
        status.textContent = "Selected; copy it with the keyboard.";
      }
    });
  }
})();
