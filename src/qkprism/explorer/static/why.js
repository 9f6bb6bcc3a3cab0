// Why this token: a prompt as tokens, the heads that attend from one of them, and one head's logits in parts.

/** @import { Explanation, Links, Row } from "./source.js" */
/** @import { State } from "./state.js" */
import { button, el, fill, hint, option, select } from "./dom.js";
import { headList } from "./headlist.js";
import { quoted, signed } from "./letters.js";
import { promptForm } from "./prompt.js";
import { ask, mailed } from "./source.js";
import { stackView } from "./stack.js";
import { go } from "./state.js";
import { tokensView } from "./tokens.js";

/** What an edit can take away, but a feature. */
const PLAIN = ["first token", "position", "salience", "asked position"];
const SHOWN = [14, 40, 1000];
const WAYS = new Map([
  ["oblique", "oblique: each along all the others"],
  ["shapley", "Shapley: what two have in common is halved"],
  ["sequential", "sequential: what two have in common is the first's"],
]);

export function whyView() {
  const tokens = tokensView({ choose: (place) => go(mailed ? { key: place } : { query: place, key: null }), point });
  const stack = stackView({ choose: (place) => go({ key: place }), point });
  const heads = headList((head) => go({ head, key: null }));
  const form = promptForm("prompt", "Ask why", (text) => go({ view: "why", text, query: null, key: null }, { again: true }));
  const question = el("p", { class: "hint question" });
  const title = el("h2", { id: "row-title" });
  const sentence = el("p", { class: "computed", "aria-live": "polite" });
  let chosen = { head: "", key: 0, query: 0, part: /** @type {string|null} */ (null) };
  const removing = button("What if it did not attend there?", () => go({ view: "whatif", ...chosen, target: null, kind: "ablate" }));
  const detail = el("p", { class: "hint pointed-at" });
  const [unnamed, awaited, rebuilt] = [hint(""), hint(""), hint("")];
  const method = el("select", { id: "method" });
  const ways = el("p", { class: "axis hint", hidden: true }, el("label", { for: "method", text: "Named features share the match " }), method);
  const most = select("How many keys are drawn", SHOWN.map((count) => [count, count === 1000 ? "all keys" : `the ${count} most attended keys`]));
  const answer = el("div", { class: "answer", hidden: true },
    el("section", { class: "card text-card", "aria-label": "Text" }, question, tokens.element, detail),
    el("div", { class: "columns" },
      el("section", { class: "card", "aria-label": "Heads" }, el("h2", { text: "Heads that attend from here" }), heads.element),
      el("section", { class: "card", "aria-labelledby": "row-title" }, title, sentence, unnamed, mailed ? null : el("p", {}, removing),
        el("p", { class: "axis hint" }, el("span", { text: "Logits of " }), most,
          el("span", { text: " in parts, from the mean token after the first. The upright stroke is the whole logit." })),
        ways, stack.element, rebuilt)));
  const element = el("div", { class: "why" }, ...(mailed ? [] : form.elements), awaited, answer);

  let explanation = /** @type {Explanation|null} */ (null);
  let row = /** @type {Row|null} */ (null);
  /** What the explanation and the row are of. */
  let loaded = { text: /** @type {string|null} */ (null), method: /** @type {string|null} */ (null), row: "" };
  /** The arcs of a head over a text: asked when the row is there. */
  let linked = { of: "", links: /** @type {Links|null} */ (null) };
  let last = /** @type {State|null} */ (null);

  most.addEventListener("change", draw);
  method.addEventListener("change", () => go({ method: method.value || null }));

  function point(/** @type {number|null} */ place) {
    tokens.point(place);
    stack.point(place);
    if (place === null || !row || !explanation) return void fill(detail, "\u00a0");
    const told = row.parts.map((part) => `${part.name} ${signed(part.values[place] ?? 0)}`).join(", ");
    const ends = linked.links ? ` ${toldLinks(linked.links, place, explanation.tokens)}` : "";
    const logit = row.logits[place];
    fill(detail, `${quoted(explanation.tokens[place])}, token ${place}: ` +
      (logit === null ? "not seen from the query" : `attention ${row.attention[place].toFixed(3)}, logit ${logit.toFixed(2)} = ${told}`) + "." + ends);
  }

  async function look(/** @type {State} */ state, /** @type {AbortSignal} */ signal) {
    last = state;
    form.show(state.text);
    awaited.hidden = Boolean(state.text) || mailed;
    fill(awaited, `Write a text, or choose one: it appears as tokens, and ${state.head ?? "every head"} is asked why it attends where it does.`);
    if (!state.text && !mailed) {
      answer.hidden = true;
      [explanation, row] = [null, null];
      return;
    }
    await load(state, signal);
    if (signal.aborted) return;
    draw();
    await link(state.text, signal);
  }

  /** Arcs from and to every token, which the row did not need. */
  async function link(/** @type {string} */ text, /** @type {AbortSignal} */ signal) {
    if (mailed || !row) return;
    const of = JSON.stringify([text, row.head]);
    if (linked.of !== of) {
      tokens.link(null);
      linked = { of, links: await ask("arcs", { text, head: row.head }, signal) };
    }
    if (!signal.aborted) tokens.link(linked.links);
  }

  /** Ask for what the state needs and is not here yet. */
  async function load(/** @type {State} */ { text, query, key, head: named, method: shares }, /** @type {AbortSignal} */ signal) {
    const same = explanation && loaded.text === text && loaded.method === shares &&
      (query === null ? mailed || explanation.query === explanation.tokens.length - 1 : explanation.query === query);
    if (!same) {
      [explanation, row] = [await ask("explain", { text, query, method: shares }, signal), null];
      loaded = { text, method: shares, row: "" };
    }
    const found = /** @type {Explanation} */ (explanation);
    const head = named ?? (mailed && found.edges.find(hasName) || found.edges[0]).head;
    const wanted = JSON.stringify([head, key]);
    const known = row && row.head === head && (key === null || row.edges.some((edge) => edge.key === key));
    if (loaded.row !== wanted && !known) {
      row = await ask("row", { text, query: found.query, head, key, method: shares }, signal);
      loaded.row = wanted;
    }
  }

  function draw() {
    if (!explanation || !row || !last) return;
    const { tokens: words, query } = explanation;
    const told = row.edges;
    const keys = [last.key, explanation.edges.find((edge) => edge.head === row?.head)?.key];
    const edge = keys.map((key) => told.find((one) => one.key === key)).find(Boolean) ?? told.find((one) => one.key > 0) ?? told[0];
    answer.hidden = false;
    const strength = Math.max(0, ...row.attention.slice(1)).toFixed(2);
    fill(question, "Why do heads attend where they do from ", el("b", { text: quoted(words[query]) }),
      ` (token ${query})? ${mailed ? "" : "Click another token to ask from there. "}Darker tokens get more attention of ${row.head}; the darkest but the first gets ${strength}. Point at any: solid arcs go to what it attends to, dashed ones come from what attends to it.`);
    tokens.show(words, row, edge.key);
    heads.show(explanation, row.head);
    stack.show(row, words, edge.key, Number(most.value));
    fill(title, `${row.head}: why ${quoted(words[edge.key])}?`);
    fill(sentence, edge.sentence);
    const { decides } = edge;
    const feature = hasName(edge) && row.parts.some((part) => part.name === decides);
    chosen = { head: row.head, key: edge.key, query, part: feature ? null : PLAIN.includes(decides) ? decides : "match" };
    fill(unnamed, edge.unnamed?.length ? `${edge.unnamed.join(", ")}: no better here than permuted labels, so its part counts as unnamed.` : "");
    fill(rebuilt, rebuiltSentence(row));
    const methods = explanation.methods ?? [];
    ways.hidden = !methods.length;
    fill(method, option("", "as usual"), ...methods.map((name) => option(name, WAYS.get(name) ?? name)));
    method.value = last.method ?? "";
    point(null);
  }

  return { element, wait: "Asking the model …", look };
}

/** Whether a named feature decides: a page that was mailed opens with such a head. @param {{decides: string}} edge */
function hasName(edge) {
  return !PLAIN.includes(edge.decides) && edge.decides !== "unnamed match";
}

/** Where a token attends, and who attends to it. @type {(links: Links, at: number, words: string[]) => string} */
function toldLinks(links, at, words) {
  const told = (/** @type {[number, number][]} */ ends) => ends.map(([place, share]) => `${quoted(words[place])} ${share.toFixed(2)}`).join(", ");
  const [out, into] = [told(links.out[at]), told(links.into[at])];
  return `${out ? `It attends to ${out}.` : ""} ${into ? `Attended from ${into}.` : ""}`.trim();
}

/** @param {Row} row */
function rebuiltSentence(row) {
  const { "+ asked position": three, "+ named": named } = row.variation;
  const more = named === undefined ? "" : `; with the named features, by ${named.toFixed(2)}`;
  const sink = row.sink > 0.005 ? ` ${(100 * row.sink).toFixed(0)}% of the attention goes to a sink that is no token.` : "";
  return `Rebuilt without any match, from first token, position, salience and asked position alone, this row is off by ` +
    `${three.toFixed(2)} in total variation${more} (0 is exact, 1 shares nothing).${sink}`;
}
