// What if: two keys of a text edited in a head; attention and next tokens before and after, beside the controls.

/** @import { Explanation, Row, WhatIf } from "./source.js" */
/** @import { State } from "./state.js" */
import { button, el, fill, hint, radios } from "./dom.js";
import { dumbbells } from "./dumbbells.js";
import { editForm } from "./editform.js";
import { percent, quoted } from "./letters.js";
import { promptForm } from "./prompt.js";
import { ask } from "./source.js";
import { go } from "./state.js";
import { markedTokens } from "./tokens.js";

const ROLES = [
  ["key", "the first key, which is edited"],
  ["target", "the second key"],
  ["query", "the query"],
];
const KEYS_DRAWN = 10;

/** @typedef {{query: number, key: number, target: number}} Places */

export function whatIfView() {
  const form = promptForm("whatif-prompt", "Ask what if", (text) => go({ view: "whatif", text, query: null, key: null, target: null }));
  let role = "key";
  const roles = radios("role", ROLES, (value) => {
    role = value;
  });
  const tokens = markedTokens("Tokens of the text. Choose one to make it what is ticked above.", choose);
  const edit = editForm();
  const sentence = el("p", { class: "computed", "aria-live": "polite" });
  const [attention, said, moved] = [el("div"), el("div"), hint("")];
  const title = el("h2");
  const answer = el("div", { hidden: true },
    el("section", { class: "card", "aria-label": "Text" },
      el("div", { class: "controls", role: "radiogroup", "aria-label": "A click makes a token" },
        el("span", { text: "A click makes a token" }), ...roles.map((one) => one.element)),
      tokens.element),
    el("section", { class: "card spaced", "aria-label": "Edit" }, edit.element),
    el("section", { class: "card spaced", "aria-label": "What happens" }, sentence,
      el("p", {}, button("Why does it attend there?", () => go({ view: "why", ...(places ? { query: places.query, key: places.key } : {}) }))),
      el("div", { class: "columns halves" },
        el("div", {}, title, attention), el("div", {}, el("h2", { text: "What the model says next" }), said, moved))));
  const element = el("div", { class: "whatif" }, ...form.elements, answer);
  let places = /** @type {Places|null} */ (null);

  function choose(/** @type {number} */ place) {
    if (!places) return;
    if (role === "query") return go({ query: place, key: null, target: null });
    const other = role === "key" ? "target" : "key";
    go(places[other] === place ? { key: places.target, target: places.key } : { key: places.key, target: places.target, [role]: place });
  }

  async function look(/** @type {State} */ state, /** @type {AbortSignal} */ signal) {
    form.show(state.text);
    answer.hidden = !state.text;
    if (!state.text) return;
    const explained = await ask("explain", { text: state.text, query: state.query }, signal);
    const head = state.head ?? explained.edges[0].head;
    const row = await ask("row", { text: state.text, query: explained.query, head, key: null }, signal);
    const edits = await ask("edits", { head }, signal);
    const { query, key, target } = (places = placesOf(state, explained, row));
    tokens.show(explained.tokens, new Map([
      [target, { sign: "2", kind: "second", told: "the second key" }],
      [key, { sign: "1", kind: "first", told: "the first key" }],
      [query, { sign: "?", kind: "asks", told: "the query" }],
    ]), row.attention);
    draw(explained.tokens, await ask("whatif", { text: state.text, ...places, ...edit.show(edits, state) }, signal));
  }

  function draw(/** @type {string[]} */ words, /** @type {WhatIf} */ found) {
    const { before, after, low, high } = found.attention;
    const most = before.map((_, place) => place)
      .filter((place) => place <= found.query)
      .sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a])).slice(0, KEYS_DRAWN);
    const drawn = [...new Set([...most, found.target, found.original])].sort((a, b) => a - b);
    const kind = (/** @type {number} */ place) => (place === found.original ? "first" : place === found.target ? "second" : "");
    fill(sentence, found.sentence);
    fill(title, `Attention of ${found.head} from ${quoted(words[found.query])}`);
    fill(attention, dumbbells(drawn.map((place) => ({
      name: `${place} ${words[place]}`, kind: kind(place), before: before[place], after: after[place], low: low[place], high: high[place],
    })), "Attention before and after, a token a row", 2),
    hint(found.draws > 1 ? `Controls: the same edit with ${found.control}, ${found.draws} times.` : `Control: the same edit with ${found.control}.`));
    if (!found.moved) return void fill(said, hint("This model predicts no next token."));
    fill(said, dumbbells(found.predictions.map((one) => ({
      name: one.token, kind: one.key, before: one.before, after: one.after,
      low: Math.min(...one.permuted), high: Math.max(...one.permuted),
    })), "Probability of the next token before and after", 3));
    const { permuted, full } = found.moved;
    fill(moved, `The edit moves ${percent(found.moved.after, 1)} of the probability; under ` +
      `${permuted.length > 1 ? `controls ${percent(Math.min(...permuted), 1)} to` : "the control"} ${percent(Math.max(...permuted), 1)}.` +
      (full === null ? "" : ` Editing the whole key moves ${percent(full, 1)}.`));
  }

  return { element, wait: "Running the edited model …", look };
}

/**
 * Query and keys as the address says, else the two most attended keys that are not the first token.
 * @type {(state: State, explained: Explanation, row: Row) => Places}
 */
function placesOf(state, explained, row) {
  const seen = row.attention.map((share, place) => ({ share, place }))
    .filter((one) => row.logits[one.place] !== null && one.place > 0)
    .sort((a, b) => b.share - a.share).map((one) => one.place);
  const key = state.key ?? seen[0] ?? 0;
  const same = seen.filter((place) => place !== key && place !== explained.query);
  return { query: explained.query, key, target: state.target !== null && state.target !== key ? state.target : same[0] ?? (key === 0 ? 1 : 0) };
}
