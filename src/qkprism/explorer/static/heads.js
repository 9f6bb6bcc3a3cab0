// Heads: layers against heads as a map, coloured by any score; one click opens a head.

import { inkOn, onScale } from "./colors.js";
import { el, fill } from "./dom.js";
import { headPanel } from "./head.js";
import { roving, setStop } from "./keys.js";
import { ask } from "./source.js";
import { go } from "./state.js";

/**
 * @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status
 * @param {import("./source.js").Palette} palette
 */
export function headsView(status, palette) {
  const score = /** @type {HTMLSelectElement} */ (el("select", { id: "score" }));
  const search = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", id: "find", placeholder: "L18H6", spellcheck: "false", size: "8" }));
  const caption = el("p", { class: "hint" });
  const legend = el("div", { class: "scale" });
  const map = el("div", { class: "map", role: "group", "aria-label": "Heads: a row a layer" });
  const panel = headPanel(status);
  const element = el("div", { class: "columns heads-view" },
    el("section", { class: "card", "aria-label": "Map" },
      el("h2", { text: "Heads of the model" }),
      el("div", { class: "controls" },
        el("label", { for: "score", text: "Colour by" }), score,
        el("label", { for: "find", text: "Find" }), search),
      caption, legend, el("div", { class: "scroll" }, map)),
    panel.element);
  let wide = 1;
  roving(map, { columns: () => wide });
  score.addEventListener("change", () => go({ score: score.value }));
  search.addEventListener("input", () => mark(search.value.trim().toUpperCase()));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go({ head: search.value.trim().toUpperCase(), key: null });
  });

  /** @type {import("./source.js").Heads|null} */
  let heads = null;
  let drawn = "";
  let asking = new AbortController();

  async function look(/** @type {import("./state.js").State} */ state) {
    asking.abort();
    const { signal } = (asking = new AbortController());
    try {
      if (!heads) {
        status.busy("Reading the atlas …");
        heads = /** @type {import("./source.js").Heads} */ (await ask("heads", {}, signal));
        fill(score, ...options(heads.columns));
      }
      draw(heads, state);
      mark(state.head ?? "");
      await panel.look(heads, state.head, signal);
      if (!signal.aborted) status.done();
    } catch (error) {
      if (!signal.aborted) status.fail(/** @type {Error} */ (error).message);
    }
  }

  function draw(/** @type {import("./source.js").Heads} */ all, /** @type {import("./state.js").State} */ state) {
    const column = all.columns.find((one) => one.name === state.score) ?? usual(all.columns);
    score.value = column.name;
    if (drawn === column.name) return;
    drawn = column.name;
    const known = /** @type {number[]} */ (column.values.filter((value) => value !== null));
    const [low, high] = [Math.min(0, ...known), Math.max(1e-9, ...known)];
    const shares = high <= 1;
    fill(caption, column.caption);
    fill(legend, el("span", { text: told(low, shares) }),
      el("span", { class: "gradient", style: { background: `linear-gradient(to right, ${palette.scale.join(",")})` } }),
      el("span", { text: told(high, shares) }));
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
        type: "button", class: "cell", data: { head: name, rove: "" }, text: value === null ? "" : letters(value, shares),
        "aria-label": `${name}: ${column.name} ${value === null ? "not known" : value.toFixed(3)}`,
        title: `${name}: ${value === null ? "not known" : value.toFixed(3)}`,
        style: { background: color ? `rgb(${color})` : palette.missing, color: color ? inkOn(color) : "#000000", "grid-column": String(index + 2) },
        on: { click: () => go({ head: name, key: null }) },
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

  return { element, look };
}

/**
 * The score that is shown first: what contrasts found if there are any, else who copies what followed before.
 * @param {import("./source.js").Column[]} columns
 */
function usual(columns) {
  const first = columns.find((one) => one.name.startsWith("contrast: "));
  return first ?? columns.find((one) => one.name === "attention: after the same token") ?? columns[0];
}

/** @param {import("./source.js").Column[]} columns */
function options(columns) {
  const groups = new Map();
  for (const { name } of columns) {
    const group = name.includes(": ") ? name.slice(0, name.indexOf(": ")) : "other";
    if (!groups.has(group)) groups.set(group, el("optgroup", { label: group }));
    groups.get(group).append(el("option", { value: name, text: name }));
  }
  return [...groups.values()];
}

/**
 * @param {number} value
 * @param {boolean} shares
 */
function told(value, shares) {
  return shares ? `${(100 * value).toFixed(0)}%` : value.toFixed(2);
}

/**
 * @param {number} value
 * @param {boolean} shares
 */
function letters(value, shares) {
  return shares ? (100 * value).toFixed(0) : value.toFixed(1);
}
