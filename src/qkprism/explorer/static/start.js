// Start: what this model and these runs are, in three sentences, and the one picture.

import { columnNamed, usualColumn } from "./columns.js";
import { el, fill } from "./dom.js";
import { headLink } from "./headlink.js";
import { headMap } from "./map.js";
import { pinList } from "./pins.js";
import { promptForm } from "./prompt.js";
import { ask } from "./source.js";
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
  const pins = pinList();
  const form = promptForm("start-prompt", "Ask why", (text) => go({ view: "why", text, query: null, key: null }));
  const element = el("div", {},
    el("section", { class: "card", "aria-label": "What this is" }, sentences),
    el("section", { class: "card spaced", "aria-label": "Ask" }, ...form.elements),
    pins.element,
    el("section", { class: "card spaced", "aria-label": "Heads" }, title, caption, map.element));

  async function look(/** @type {import("./state.js").State} */ state) {
    try {
      const start = /** @type {import("./source.js").Start} */ (await ask("start"));
      fill(sentences, ...(start.sentences ?? []).map((pieces) =>
        el("p", {}, ...pieces.map((piece) => (typeof piece === "string" ? piece : headLink(piece.head))))));
      const heads = /** @type {import("./source.js").Heads} */ (await ask("heads", {}));
      const column = columnNamed(heads.columns, state.score) ?? usualColumn(heads.columns);
      fill(title, `Every head by ${column.name}`);
      fill(caption, `${column.caption} Click a head to open it.`);
      map.show(heads, column);
      map.mark(state.head ?? "");
      pins.show();
      status.done();
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  return { element, look };
}
