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
  const claims = el("div", {});
  const pins = pinList();
  const form = promptForm("start-prompt", "Ask why", (text) => go({ view: "why", text, query: null, key: null }));
  const picture = el("section", { class: "card spaced", "aria-label": "The picture" }, title, caption, map.element, drawn.element);
  const element = el("div", {},
    el("section", { class: "card", "aria-label": "What this is" }, sentences),
    mailed ? null : el("section", { class: "card spaced", "aria-label": "Ask" }, ...form.elements),
    pins.element, picture, claims);

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      const start = /** @type {import("./source.js").Start} */ (await ask("start"));
      const found = start.found ?? [];
      fill(sentences, ...(found.length ? found.flatMap((one) => foundPart(one, found.length > 1)) : []),
        ...[...(start.sentences ?? []), start.hint ?? []].filter((one) => one.length).map((one) => el("p", {}, ...pieces(one))));
      fill(claims, ...found.filter((one) => one.claims.length).map(claimList));
      pins.show();
      await showPicture(found, state);
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
 * What a run found, and the prompts that it kept.
 * @param {import("./source.js").Found} found
 * @param {boolean} several
 */
function foundPart(found, several) {
  return [
    several ? el("h2", { text: `${found.run}: ${found.what}` }) : null,
    ...found.sentences.map((sentence) => el("p", {}, ...pieces(sentence))),
    ...(found.prompts.length ? [el("p", {}, "Why, in a prompt of this run: ", ...found.prompts.map(({ text, query, head }) =>
      el("button", { type: "button", class: "link prompt-link", text, on: { click: () => go({ view: "why", text, query, head, key: null }) } })))] : []),
    ...found.notes.map((note) => el("p", { class: "hint" }, ...pieces(note))),
  ].filter((one) => one !== null);
}
