"use strict";

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function draw(block) {
  const plot = block.querySelector(".plot");
  if (plot) drawFigure(plot, await unpacked(block.querySelector("script").textContent));
}

function show(section, choice) {
  for (const block of section.querySelectorAll(".block")) {
    block.hidden = block.dataset.choice !== choice;
    if (!block.hidden) draw(block);
  }
}

function drawShown() {
  document.querySelectorAll(".block:not([hidden])").forEach(draw);
}

const menus = [...document.querySelectorAll("section > select")];
for (const menu of menus) {
  menu.addEventListener("change", () => {
    for (const other of menus) {
      if ([...other.options].some((option) => option.value === menu.value)) {
        other.value = menu.value;
        show(other.parentElement, menu.value);
      }
    }
  });
}

function key(row, column) {
  const cell = row.cells[column];
  return cell.dataset.sort === undefined ? cell.textContent : Number(cell.dataset.sort);
}

function sort(head) {
  const rising = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", rising ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].sort((one, two) => {
    const [a, b] = [key(one, head.cellIndex), key(two, head.cellIndex)];
    // What is not known stands last, whatever the direction.
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return (rising ? 1 : -1) * (typeof a === "number" ? a - b : a.localeCompare(b));
  });
  body.append(...rows);
}

for (const head of document.querySelectorAll("th")) head.addEventListener("click", () => sort(head));
document.querySelectorAll(".plot").forEach((plot, number) => (plot.dataset.number = number));
let across = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth !== across) drawShown();
  across = document.body.clientWidth;
});
drawShown();
