// Layers against heads as a map, coloured by one score; one click opens a head.

import { inkOn, onScale } from "./colors.js";
import { el, fill } from "./dom.js";
import { roving, setStop } from "./keys.js";

/**
 * @param {import("./source.js").Palette} palette
 * @param {(head: string) => void} choose
 */
export function headMap(palette, choose) {
  const legend = el("div", { class: "scale" });
  const map = el("div", { class: "map", role: "group", "aria-label": "Heads: a row a layer" });
  const element = el("div", {}, legend, el("div", { class: "scroll" }, map));
  let wide = 1;
  roving(map, { columns: () => wide });

  function show(/** @type {import("./source.js").Heads} */ all, /** @type {import("./source.js").Column} */ column) {
    const known = /** @type {number[]} */ (column.values.filter((value) => value !== null));
    const [low, high] = [Math.min(0, ...known), Math.max(1e-9, ...known)];
    const shares = high <= 1;
    fill(legend, el("span", { text: endOfScale(low, shares) }),
      el("span", { class: "gradient", style: { background: `linear-gradient(to right, ${palette.scale.join(",")})` } }),
      el("span", { text: endOfScale(high, shares) }));
    wide = 1 + Math.max(...all.heads.map(([, index]) => index));
    map.style.setProperty("--wide", String(wide));
    const cells = [el("span"), ...Array.from({ length: wide }, (_, i) => el("span", { class: "tick", text: `H${i}` }))];
    let layer = -1;
    all.heads.forEach(([at, index], i) => {
      if (at !== layer) cells.push(el("span", { class: "tick layer", text: `L${(layer = at)}` }));
      const value = column.values[i];
      const color = value === null ? null : onScale(palette.scale, (value - low) / (high - low));
      const name = `L${at}H${index}`;
      cells.push(el("button", {
        type: "button", class: "cell", data: { head: name, rove: "" }, text: value === null ? "" : inCell(value, shares),
        "aria-label": `${name}: ${column.name} ${value === null ? "not known" : inCell(value, shares)}`,
        title: `${name}: ${value === null ? "not known" : value.toFixed(3)}`,
        style: { background: color ? `rgb(${color})` : palette.missing, color: color ? inkOn(color) : "#000000", "grid-column": String(index + 2) },
        on: { click: () => choose(name) },
      }));
    });
    fill(map, ...cells);
  }

  /** Frame the heads whose name begins so. */
  function mark(/** @type {string} */ name) {
    const cells = /** @type {HTMLElement[]} */ ([...map.querySelectorAll("[data-head]")]);
    cells.forEach((cell) => {
      cell.classList.toggle("chosen", cell.dataset.head === name);
      cell.classList.toggle("found", name !== "" && (cell.dataset.head ?? "").startsWith(name));
    });
    if (!map.contains(document.activeElement)) setStop(cells, Math.max(0, cells.findIndex((cell) => cell.dataset.head === name)));
  }

  return { element, show, mark };
}

/**
 * @param {number} value
 * @param {boolean} shares
 */
function endOfScale(value, shares) {
  return shares ? `${(100 * value).toFixed(0)}%` : value.toFixed(2);
}

/**
 * @param {number} value
 * @param {boolean} shares
 */
function inCell(value, shares) {
  return shares ? (100 * value).toFixed(0) : value.toFixed(1);
}
