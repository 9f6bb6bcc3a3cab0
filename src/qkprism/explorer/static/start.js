// Start: what this model and these runs are, in a few sentences that lead to their evidence, and the picture that matters.

import { claimList } from "./claims.js";
import { columnNamed, usualColumn } from "./columns.js";
import { el, fill } from "./dom.js";
import { figurePlace } from "./figures.js";
import { headMap } from "./map.js";
import { pieces } from "./pieces.js";
import { pinList } from "./pins.js";
import { promptForm } from "./prompt.js";
import { ask, mailed } from "./source.js";
import { go } from "./state.js";

const LEADING = 3; // sentences before the picture

/**
 * @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status
 * @param {import("./source.js").Palette} palette
 */
export function startView(status, palette) {
  const sentences = el("div", { class: "sentences" });
  const map = headMap(palette, (head) => go({ view: "heads", head }));
  const caption = el("p", { class: "hint" });
  const title = el("h2", {});
  const drawn = figurePlace();
  const rest = el("div", {});
  const pins = pinList();
  const form = promptForm("start-prompt", "Ask why", (text) => go({ view: "why", text, query: null, key: null }));
  const picture = el("section", { class: "card spaced", "aria-label": "The picture" }, title, caption, map.element, drawn.element);
  const element = el("div", {},
    el("section", { class: "card", "aria-label": "What this is" }, sentences),
    mailed ? null : el("section", { class: "card spaced", "aria-label": "Ask" }, ...form.elements),
    pins.element, picture, rest);

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      const start = /** @type {import("./source.js").Start} */ (await ask("start"));
      const found = start.found ?? [];
      const [what, ...more] = start.sentences ?? [];
      const model = [what ?? [], start.hint ?? [], ...more].filter((one) => one.length);
      const each = Math.max(1, Math.floor(LEADING / found.length)); // of a run
      const first = (found.length ? found.flatMap((one) => one.sentences.slice(0, each)) : model).slice(0, LEADING);
      fill(sentences, ...first.map((one) => el("p", {}, ...pieces(one))));
      pins.show();
      await showPicture(found, state); // what stands below it comes after it, so that nothing jumps
      fill(rest, ...found.map((one) => foundPart(one, first)), restPart(start.model ?? "", model.filter((one) => !first.includes(one))),
        ...found.filter((one) => one.claims.length).map(claimList));
      status.done();
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  /** The figure of a run that has one, else every head by its score. */
  async function showPicture(/** @type {import("./source.js").Found[]} */ found, /** @type {import("./state.js").State} */ state) {
    const own = found.find((one) => one.picture);
    const heads = /** @type {import("./source.js").Heads} */ (await ask("heads", {}));
    const column = columnNamed(heads.columns, state.score) ?? usualColumn(heads.columns);
    [map.element.hidden, drawn.element.hidden, picture.hidden] = [Boolean(own), !own, !own && !column];
    if (own) {
      fill(title, `${own.run}: ${own.picture}`);
      fill(caption, "Drag to look closer; a double click goes back. More figures are in Run.");
      return drawn.show(own.run, own.picture);
    }
    if (!column) return;
    fill(title, `Every head by ${column.name}`);
    fill(caption, `${column.caption} Click a head to open it.`);
    map.show(heads, column);
    map.mark(state.head ?? "");
  }

  return { element, look };
}

/**
 * What else a run found, and the prompts that it kept.
 * @param {import("./source.js").Found} found
 * @param {import("./source.js").Piece[][]} told that stand above
 */
function foundPart(found, told) {
  return restPart(`${found.run}: ${found.what}`, found.sentences.filter((one) => !told.includes(one)),
    ...(found.prompts.length ? [el("p", {}, "Why, in a prompt of this run: ", ...found.prompts.map(({ text, query, head }) =>
      el("button", { type: "button", class: "link prompt-link", text, on: { click: () => go({ view: "why", text, query, head, key: null }) } })))] : []),
    ...found.notes.map((note) => el("p", { class: "hint" }, ...pieces(note))));
}

/**
 * @param {string} title
 * @param {import("./source.js").Piece[][]} sentences
 * @param {...HTMLElement} more
 */
function restPart(title, sentences, ...more) {
  if (!sentences.length && !more.length) return null;
  return el("section", { class: "card spaced sentences", "aria-label": title }, el("h2", { text: title }), ...more,
    el("ul", {}, ...sentences.map((sentence) => el("li", {}, ...pieces(sentence)))));
}
