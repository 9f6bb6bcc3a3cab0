// Heads: all of them as a map or as a scatter of two scores, coloured by a third; one or two are opened beside it.

import { columnNamed, columnOptions, usualColumn } from "./columns.js";
import { onScale } from "./colors.js";
import { el, fill } from "./dom.js";
import { headPanel } from "./head.js";
import { headMap } from "./map.js";
import { saveButtons } from "./saving.js";
import { scatterPlot } from "./scatter.js";
import { ask } from "./source.js";
import { go } from "./state.js";

/**
 * @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status
 * @param {import("./source.js").Palette} palette
 */
export function headsView(status, palette) {
  const [score, across, up] = ["score", "across", "up"].map((id) => /** @type {HTMLSelectElement} */ (el("select", { id })));
  const search = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", id: "find", placeholder: "L18H6", spellcheck: "false", size: "8" }));
  const beside = /** @type {HTMLInputElement} */ (
    el("input", { type: "search", id: "beside", placeholder: "none", spellcheck: "false", size: "8" }));
  const caption = el("p", { class: "hint" });
  const map = headMap(palette, (head) => go({ head, key: null }));
  const plot = scatterPlot("Heads by two scores", (head) => go({ head, key: null }));
  const plotted = el("div", {}, plot.element, saveButtons(plot.picture, () => `heads ${across.value} ${up.value}`));
  const [panel, second] = [headPanel(status), headPanel(status)];
  const element = el("div", { class: "columns heads-view" },
    el("section", { class: "card", "aria-label": "Map" },
      el("h2", { text: "Heads of the model" }),
      el("div", { class: "controls" },
        el("label", { for: "score", text: "Colour by" }), score),
      el("div", { class: "controls spaced" },
        el("label", { for: "find", text: "Open head" }), search,
        el("label", { for: "beside", text: "and beside it" }), beside),
      el("details", { class: "spaced", id: "axes" }, el("summary", { text: "Draw two scores against each other" }),
        el("div", { class: "controls spaced" }, el("label", { for: "across", text: "Across" }), across, el("label", { for: "up", text: "Up" }), up)),
      caption, map.element, plotted),
    el("div", { class: "panels" }, panel.element, second.element));
  score.addEventListener("change", () => go({ score: score.value }));
  across.addEventListener("change", () => go({ across: across.value || null, up: across.value ? up.value || across.value : null }));
  up.addEventListener("change", () => go({ up: up.value || null, across: up.value ? across.value || up.value : null }));
  search.addEventListener("input", () => map.mark(search.value.trim().toUpperCase()));
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go({ head: search.value.trim().toUpperCase(), key: null });
  });
  beside.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go({ other: beside.value.trim().toUpperCase() || null });
  });
  beside.addEventListener("search", () => {
    if (!beside.value) go({ other: null });
  });

  /** @type {import("./source.js").Heads|null} */
  let heads = null;
  let drawn = "";
  let asking = new AbortController();

  async function look(/** @type {import("./state.js").State} */ state) {
    asking.abort();
    const { signal } = (asking = new AbortController());
    try {
      if (!heads) status.busy("Reading the atlas …");
      const found = /** @type {import("./source.js").Heads} */ (await ask("heads", {}, signal));
      if (found.columns.length !== heads?.columns.length) {
        heads = found;
        drawn = "";
        fill(score, ...columnOptions(heads.columns));
        for (const axis of [across, up]) fill(axis, el("option", { value: "", text: "none: a map" }), ...columnOptions(heads.columns));
      }
      draw(heads, state);
      map.mark(state.head ?? "");
      if (document.activeElement !== search) search.value = state.head ?? "";
      beside.value = state.other ?? "";
      second.element.hidden = !state.other;
      await panel.look(heads, state.head, signal);
      if (state.other) await second.look(heads, state.other, signal);
      if (!signal.aborted) status.done();
    } catch (error) {
      if (!signal.aborted) status.fail(/** @type {Error} */ (error).message);
    }
  }

  function draw(/** @type {import("./source.js").Heads} */ all, /** @type {import("./state.js").State} */ state) {
    const column = columnNamed(all.columns, state.score) ?? usualColumn(all.columns);
    const [x, y] = [columnNamed(all.columns, state.across), columnNamed(all.columns, state.up)];
    [score.value, across.value, up.value] = [column.name, x?.name ?? "", y?.name ?? ""];
    if (x && y) /** @type {HTMLDetailsElement} */ (element.querySelector("#axes")).open = true;
    [map.element.hidden, plotted.hidden] = [Boolean(x && y), !(x && y)];
    const now = JSON.stringify([column.name, x?.name, y?.name, x && y ? [state.head, state.other] : 0]);
    if (drawn === now) return;
    drawn = now;
    fill(caption, column.caption);
    if (x && y) drawPoints(all, column, x, y, [state.head, state.other]);
    else map.show(all, column);
  }

  /** A point a head that has both scores. */
  function drawPoints(
    /** @type {import("./source.js").Heads} */ all,
    /** @type {import("./source.js").Column} */ column,
    /** @type {import("./source.js").Column} */ x,
    /** @type {import("./source.js").Column} */ y,
    /** @type {(string|null)[]} */ chosen,
  ) {
    const known = /** @type {number[]} */ (column.values.filter((value) => value !== null));
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

  return { element, look };
}
