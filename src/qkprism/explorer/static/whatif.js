// What if: two keys of a text edited in a head; attention and next tokens before and after, beside the controls.

import { el, fill } from "./dom.js";
import { dumbbells } from "./dumbbells.js";
import { editForm } from "./editform.js";
import { percent, quoted } from "./letters.js";
import { markedTokens } from "./marked.js";
import { promptForm } from "./prompt.js";
import { ask } from "./source.js";
import { go } from "./state.js";

const ROLES = [
  ["key", "the first key, which is edited"],
  ["target", "the second key"],
  ["query", "the query"],
];
const KEYS_DRAWN = 10;

/** @param {{busy: (sentence: string) => void, done: () => void, fail: (sentence: string) => void}} status */
export function whatIfView(status) {
  const form = promptForm("whatif-prompt", "Ask what if", (text) => go({ view: "whatif", text, query: null, key: null, target: null }));
  let role = "key";
  const roles = ROLES.map(([value, told]) => {
    const radio = /** @type {HTMLInputElement} */ (el("input", { type: "radio", name: "role", value, id: `role-${value}` }));
    radio.checked = value === role;
    radio.addEventListener("change", () => {
      role = value;
    });
    return el("label", { class: "choice", for: `role-${value}` }, radio, ` ${told}`);
  });
  const tokens = markedTokens("Tokens of the text. Choose one to make it what is ticked above.", choose);
  const edit = editForm();
  const sentence = el("p", { class: "computed", "aria-live": "polite" });
  const attention = el("div", {});
  const said = el("div", {});
  const moved = el("p", { class: "hint" });
  const titles = { attention: el("h2", {}), said: el("h2", { text: "What the model says next" }) };
  const answer = el("div", { hidden: true },
    el("section", { class: "card", "aria-label": "Text" },
      el("div", { class: "controls", role: "radiogroup", "aria-label": "A click makes a token" }, el("span", { text: "A click makes a token" }), ...roles),
      tokens.element),
    el("section", { class: "card spaced", "aria-label": "Edit" }, edit.element),
    el("section", { class: "card spaced", "aria-label": "What happens" }, sentence,
      el("p", {}, el("button", { type: "button", class: "link", text: "Why does it attend there?",
        on: { click: () => go({ view: "why", ...(places ? { query: places.query, key: places.key } : {}) }) } })),
      el("div", { class: "columns halves" },
        el("div", {}, titles.attention, attention), el("div", {}, titles.said, said, moved))));
  const element = el("div", { class: "whatif" }, ...form.elements, answer);
  let asking = new AbortController();
  /** @type {{query: number, key: number, target: number}|null} */
  let places = null;

  function choose(/** @type {number} */ place) {
    if (!places) return;
    if (role === "query") return go({ query: place, key: null, target: null });
    const other = role === "key" ? "target" : "key";
    go(places[other] === place ? { key: places.target, target: places.key } : { key: places.key, target: places.target, [role]: place });
  }

  async function look(/** @type {import("./state.js").State} */ state) {
    asking.abort();
    form.show(state.text);
    answer.hidden = !state.text;
    if (!state.text) return status.done();
    const { signal } = (asking = new AbortController());
    const waiting = setTimeout(() => status.busy("Running the edited model …"), 150);
    try {
      await load(state, signal);
      if (!signal.aborted) status.done();
    } catch (error) {
      if (!signal.aborted) status.fail(/** @type {Error} */ (error).message);
    } finally {
      clearTimeout(waiting);
    }
  }

  async function load(/** @type {import("./state.js").State} */ state, /** @type {AbortSignal} */ signal) {
    const explained = /** @type {import("./source.js").Explanation} */ (
      await ask("explain", { text: state.text, query: state.query }, signal));
    const head = state.head ?? explained.edges[0].head;
    const row = /** @type {import("./source.js").Row} */ (
      await ask("row", { text: state.text, query: explained.query, head, key: null }, signal));
    const edits = /** @type {import("./source.js").Edits} */ (await ask("edits", { head }, signal));
    places = placesOf(state, explained, row);
    showTokens(explained.tokens, row.attention);
    const chosen = edit.show(edits, state);
    const found = /** @type {import("./source.js").WhatIf} */ (
      await ask("whatif", { text: state.text, ...places, ...chosen }, signal));
    draw(explained.tokens, found);
  }

  function showTokens(/** @type {string[]} */ words, /** @type {(number|null)[]} */ shares) {
    if (!places) return;
    tokens.show(words, new Map([
      [places.target, { sign: "2", kind: "second", told: "the second key" }],
      [places.key, { sign: "1", kind: "first", told: "the first key" }],
      [places.query, { sign: "?", kind: "asks", told: "the query" }],
    ]), shares);
  }

  function draw(/** @type {string[]} */ words, /** @type {import("./source.js").WhatIf} */ found) {
    const { before, after, low, high } = found.attention;
    const drawn = before.map((_, place) => place)
      .filter((place) => place <= found.query)
      .sort((a, b) => Math.max(before[b], after[b]) - Math.max(before[a], after[a])).slice(0, KEYS_DRAWN);
    for (const place of [found.target, found.original]) if (!drawn.includes(place)) drawn.push(place);
    drawn.sort((a, b) => a - b);
    const kind = (/** @type {number} */ place) => (place === found.original ? "first" : place === found.target ? "second" : "");
    fill(sentence, found.sentence);
    fill(titles.attention, `Attention of ${found.head} from ${quoted(words[found.query])}`);
    fill(attention, dumbbells(drawn.map((place) => ({
      name: `${place} ${words[place]}`, kind: kind(place), before: before[place], after: after[place], low: low[place], high: high[place],
    })), { label: "Attention before and after, a token a row", digits: 2 }),
    el("p", { class: "hint", text: found.draws > 1 ? `Controls: the same edit with ${found.control}, ${found.draws} times.` : `Control: the same edit with ${found.control}.` }));
    if (!found.moved) return void fill(said, el("p", { class: "hint", text: "This model predicts no next token." }));
    fill(said, dumbbells(found.predictions.map((one) => ({
      name: one.token, kind: one.key, before: one.before, after: one.after,
      low: Math.min(...one.permuted), high: Math.max(...one.permuted),
    })), { label: "Probability of the next token before and after", digits: 3 }));
    const { permuted } = found.moved;
    const most = found.moved.full === null ? "" : ` Editing the whole key moves ${percent(found.moved.full, 1)}.`;
    fill(moved, `The edit moves ${percent(found.moved.after, 1)} of the probability; under ` +
      `${permuted.length > 1 ? `controls ${percent(Math.min(...permuted), 1)} to` : "the control"} ${percent(Math.max(...permuted), 1)}.${most}`);
  }

  return { element, look };
}

/**
 * Query and keys as the address says, else the two most attended keys that are not the first token.
 * @param {import("./state.js").State} state
 * @param {import("./source.js").Explanation} explained
 * @param {import("./source.js").Row} row
 */
function placesOf(state, explained, row) {
  const seen = row.attention.map((share, place) => ({ share, place }))
    .filter((one) => row.logits[one.place] !== null && one.place > 0)
    .sort((a, b) => b.share - a.share).map((one) => one.place);
  const key = state.key ?? seen[0] ?? 0;
  const same = seen.filter((place) => place !== key && place !== explained.query);
  return { query: explained.query, key, target: state.target !== null && state.target !== key ? state.target : same[0] ?? (key === 0 ? 1 : 0) };
}
