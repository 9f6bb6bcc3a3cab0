// Heads: all of them as a map or as a scatter of two scores, coloured by a third; one or two are opened beside it.

/** @import { Column, Heads, Palette } from "./source.js" */
/** @import { State } from "./state.js" */
import { el, fill, hint, option } from "./dom.js";
import { headPanel } from "./head.js";
import { columnOf, columnOptions, headMap, onScale } from "./map.js";
import { saveButtons } from "./saving.js";
import { scatterPlot } from "./scatter.js";
import { ask } from "./source.js";
import { go } from "./state.js";

/** @param {Palette} palette */
export function headsView(palette) {
  const [score, across, up] = ["score", "across", "up"].map((id) => el("select", { id }));
  const [search, beside] = [["find", "L18H6"], ["beside", "none"]].map(([id, placeholder]) =>
    el("input", { type: "search", id, placeholder, spellcheck: "false", size: "8" }));
  const caption = hint("");
  const map = headMap(palette, (head) => go({ head, key: null }));
  const plot = scatterPlot("Heads by two scores", (head) => go({ head, key: null }));
  const plotted = el("div", {}, plot.element, saveButtons(plot.picture, () => `heads ${across.value} ${up.value}`));
  const [panel, second] = [headPanel(), headPanel()];
  const axes = el("details", { class: "spaced" }, el("summary", { text: "Draw two scores against each other" }),
    el("div", { class: "controls spaced" }, el("label", { for: "across", text: "Across" }), across, el("label", { for: "up", text: "Up" }), up));
  const element = el("div", { class: "columns heads-view" },
    el("section", { class: "card", "aria-label": "Map" },
      el("h2", { text: "Heads of the model" }),
      el("div", { class: "controls" }, el("label", { for: "score", text: "Colour by" }), score),
      el("div", { class: "controls spaced" },
        el("label", { for: "find", text: "Open head" }), search,
        el("label", { for: "beside", text: "and beside it" }), beside),
      axes, caption, map.element, plotted),
    el("div", { class: "panels" }, panel.element, second.element));
  score.addEventListener("change", () => go({ score: score.value }));
  across.addEventListener("change", () => go({ across: across.value || null, up: across.value ? up.value || across.value : null }));
  up.addEventListener("change", () => go({ up: up.value || null, across: up.value ? across.value || up.value : null }));
  const nameIn = (/** @type {HTMLInputElement} */ field) => field.value.trim().toUpperCase();
  search.addEventListener("input", () => map.mark(nameIn(search)));
  search.addEventListener("keydown", (event) => event.key === "Enter" && go({ head: nameIn(search), key: null }));
  beside.addEventListener("keydown", (event) => event.key === "Enter" && go({ other: nameIn(beside) || null }));
  beside.addEventListener("search", () => !beside.value && go({ other: null }));

  let columns = 0;
  let drawn = "";

  async function look(/** @type {State} */ state, /** @type {AbortSignal} */ signal) {
    const heads = await ask("heads", {}, signal);
    if (heads.columns.length !== columns) {
      columns = heads.columns.length;
      drawn = "";
      fill(score, ...columnOptions(heads.columns));
      for (const axis of [across, up]) fill(axis, option("", "none: a map"), ...columnOptions(heads.columns));
    }
    draw(heads, state);
    map.mark(state.head ?? "");
    if (document.activeElement !== search) search.value = state.head ?? "";
    beside.value = state.other ?? "";
    second.element.hidden = !state.other;
    await panel.look(heads, state.head, signal);
    if (state.other) await second.look(heads, state.other, signal);
  }

  function draw(/** @type {Heads} */ all, /** @type {State} */ state) {
    const column = /** @type {Column} */ (columnOf(all.columns, state.score));
    const [x, y] = [state.across, state.up].map((name) => all.columns.find((one) => one.name === name));
    [score.value, across.value, up.value] = [column.name, x?.name ?? "", y?.name ?? ""];
    if (x && y) axes.open = true;
    [map.element.hidden, plotted.hidden] = [Boolean(x && y), !(x && y)];
    const now = JSON.stringify([column.name, x?.name, y?.name, x && y ? [state.head, state.other] : 0]);
    if (drawn === now) return;
    drawn = now;
    fill(caption, column.caption);
    if (x && y) drawPoints(all, column, x, y, [state.head, state.other]);
    else map.show(all, column);
  }

  /** A point a head that has both scores. @type {(all: Heads, column: Column, x: Column, y: Column, chosen: (string|null)[]) => void} */
  function drawPoints(all, column, x, y, chosen) {
    const known = column.values.filter((value) => value !== null);
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const points = all.heads.flatMap(([layer, index], i) => {
      const [across, up, value, name] = [x.values[i], y.values[i], column.values[i], `L${layer}H${index}`];
      if (across === null || up === null) return [];
      const color = value === null ? palette.missing : `rgb(${onScale(palette.scale, high > low ? (value - low) / (high - low) : 0)})`;
      const told = `${name}: ${x.name} ${across.toFixed(3)}, ${y.name} ${up.toFixed(3)}, ${column.name} ${value === null ? "not known" : value.toFixed(3)}`;
      return [{ name, told, x: across, y: up, color, chosen: chosen.includes(name) }];
    });
    plot.show(points, x.name, y.name);
    fill(caption, `${points.length} heads have both scores. ${column.caption}`);
  }

  return { element, wait: "Reading what is known of heads …", look };
}
