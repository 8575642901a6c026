"use strict";
const templates = JSON.parse(document.getElementById("templates").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 600px)");

// Labels were placed for a wide plot: on a narrow one, those that would cover another are left out.
function declutter(plot) {
  const area = plot.querySelector(".nsewdrag")?.getBoundingClientRect();
  const shown = [];
  for (const text of plot.querySelectorAll(".textpoint text")) {
    const box = text.getBoundingClientRect();
    const outside = area && (box.left < area.left - 2 || box.right > area.right + 2);
    const covers = shown.some(
      (other) => box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom,
    );
    text.style.visibility = outside || covers ? "hidden" : "visible";
    if (!outside && !covers) shown.push(box);
  }
}

function draw(block) {
  const plot = block.querySelector(".plot");
  if (!plot) return;
  const figure = JSON.parse(block.querySelector("script").textContent);
  const layout = { ...figure.layout, template: templates[dark.matches ? "dark" : "light"] };
  if (narrow.matches) layout.margin = { ...layout.margin, l: 8, r: 8 };
  const config = { responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover" };
  Plotly.react(plot, figure.data, layout, config).then(() => {
    declutter(plot);
    if (!plot.dataset.drawn) plot.on("plotly_afterplot", () => declutter(plot));
    plot.dataset.drawn = "yes";
  });
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
dark.addEventListener("change", drawShown);
drawShown();
