// The scores of heads: which is shown, and a map of layers against heads coloured by it; one click opens a head.

/** @import { Column, Heads, Palette } from "./source.js" */
import { el, fill, option } from "./dom.js";
import { roving, setStop } from "./keys.js";

/** The score of a name, else the usual one: what contrasts found if there is any, else who copies what followed before.
 *  @type {(columns: Column[], name: string|null) => Column|undefined} */
export function columnOf(columns, name) {
  const found = columns.find((one) => one.name.startsWith("accuracy: ") || one.name.startsWith("held-out t: "));
  return columns.find((one) => one.name === name) ?? found ??
    columns.find((one) => one.name === "attention: after the same token") ?? columns[0];
}

/** Options of a select, in groups. @param {Column[]} columns */
export function columnOptions(columns) {
  const groups = new Map();
  for (const { name } of columns) {
    const group = name.includes(": ") ? name.slice(0, name.indexOf(": ")) : "other";
    if (!groups.has(group)) groups.set(group, el("optgroup", { label: group }));
    groups.get(group).append(option(name, name));
  }
  return [...groups.values()];
}

/** The colour at a share of a scale of hexadecimal colours, from 0 to 1. @type {(scale: string[], share: number) => number[]} */
export function onScale(scale, share) {
  const place = Math.min(1, Math.max(0, share)) * (scale.length - 1);
  const low = Math.min(scale.length - 2, Math.floor(place));
  const [a, b] = [scale[low], scale[low + 1]].map((hex) => parseInt(hex.slice(1), 16)).map((rgb) => [rgb >> 16, (rgb >> 8) & 255, rgb & 255]);
  return a.map((from, i) => Math.round(from + (b[i] - from) * (place - low)));
}

/** Black or white, whichever is read better on a colour. @param {number[]} color */
function inkOn(color) {
  const [r, g, b] = color.map((one) => (one / 255 <= 0.04045 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

/** @param {Palette} palette @param {(head: string) => void} choose */
export function headMap(palette, choose) {
  const legend = el("div", { class: "scale" });
  const map = el("div", { class: "map", role: "group", "aria-label": "Heads: a row a layer" });
  const element = el("div", {}, legend, el("div", { class: "scroll" }, map));
  let wide = 1;
  roving(map, { columns: () => wide });

  function show(/** @type {Heads} */ all, /** @type {Column} */ column) {
    const known = column.values.filter((value) => value !== null);
    const [low, high] = [Math.min(0, ...known), Math.max(1e-9, ...known)];
    const shares = high <= 1;
    const end = (/** @type {number} */ value) => el("span", { text: shares ? `${(100 * value).toFixed(0)}%` : value.toFixed(2) });
    const inCell = (/** @type {number} */ value) => (shares ? (100 * value).toFixed(0) : value.toFixed(1));
    fill(legend, end(low), el("span", { class: "gradient", style: { background: `linear-gradient(to right, ${palette.scale.join(",")})` } }), end(high));
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
        type: "button", class: "cell", data: { head: name, rove: "" }, text: value === null ? "" : inCell(value),
        "aria-label": `${name}: ${column.name} ${value === null ? "not known" : inCell(value)}`,
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
