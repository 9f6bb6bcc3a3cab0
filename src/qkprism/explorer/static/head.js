// One head: where it looks on plain text, what decides, where it attends most, and what contrasts found in it.

/** @import { HeadFacts, Heads, Strong, Tested } from "./source.js" */
import { button, el, fill, hint, tableOf } from "./dom.js";
import { featureCards } from "./features.js";
import { counted, percent, sureness, visible } from "./letters.js";
import { ask } from "./source.js";
import { go } from "./state.js";

const GROUPS = [
  ["attention: ", "Where its attention goes on plain text"],
  ["decides: ", "What decides, on held-out text"],
];

/** @typedef {{name: string, value: number|null}} Score */

export function headPanel() {
  const element = el("section", { class: "card head-panel", "aria-live": "polite", "aria-label": "Head" });
  let shown = "";

  /** @type {(heads: Heads, name: string|null, signal: AbortSignal) => Promise<void>} */
  async function look(heads, name, signal) {
    if (shown === `${name} ${heads.columns.length}`) return;
    shown = "";
    if (!name) return fill(element, el("h2", { text: "Choose a head" }), hint("Click a cell of the map, or write a name such as L18H6 and press Enter."));
    try {
      const facts = await ask("head", { head: name }, signal);
      const evidence = await ask("evidence", { head: name }, signal);
      fill(element, ...described(heads, facts, evidence.sentence, featureCards(evidence)));
      shown = `${name} ${heads.columns.length}`;
    } catch (error) {
      if (!signal.aborted) fill(element, el("h2", { text: name }));
      throw error;
    }
  }

  return { element, look };
}

/** @type {(heads: Heads, facts: HeadFacts, verdict: string, features: HTMLElement[]) => (HTMLElement|null)[]} */
function described(heads, facts, verdict, features) {
  const at = heads.heads.findIndex(([layer, index]) => `L${layer}H${index}` === facts.head);
  const scores = heads.columns.map(({ name, values }) => ({ name, value: values[at] }));
  return [
    el("h2", { text: facts.head }),
    el("p", { class: "head-sentence", text: verdict || summary(scores) }),
    verdict ? el("p", { text: summary(scores) }) : null,
    el("p", {}, button(`Ask why with ${facts.head}`, () => go({ view: "why", head: facts.head, key: null }), { class: "primary" })),
    ...features,
    ...(facts.tested.length ? tested(facts.tested) : []),
    ...GROUPS.flatMap(([prefix, title]) => meters(scores, prefix, title)),
    ...(facts.strongest.length ? [el("h3", { text: "Where it attends most, in held-out text" }),
      el("ol", { class: "strongest" }, ...facts.strongest.map(strong))] : []),
  ];
}

/** One sentence made from the scores. @param {Score[]} scores */
function summary(scores) {
  const of = (/** @type {string} */ prefix) =>
    scores.filter((one) => one.name.startsWith(prefix) && one.value !== null)
      .sort((a, b) => (b.value ?? 0) - (a.value ?? 0))[0];
  const [look, decide] = [of("attention: "), of("decides: ")];
  if (!look || !decide) return "";
  const off = scores.find((one) => one.name === "variation: + asked position")?.value;
  const rebuilt = off === null || off === undefined ? "" :
    ` Without any match of query and key its rows are rebuilt to within ${off.toFixed(2)} of total variation.`;
  return `On plain text ${percent(look.value)} of its attention goes to: ${look.name.slice(11)}. What most often decides ` +
    `is ${decide.name.slice(9)} (${percent(decide.value)} of rows).${rebuilt}`;
}

/** @type {(scores: Score[], prefix: string, title: string) => HTMLElement[]} */
function meters(scores, prefix, title) {
  const rows = scores.filter((one) => one.name.startsWith(prefix) && one.value !== null);
  if (!rows.length) return []; // no atlas is open
  return [el("h3", { text: title }), el("dl", { class: "meters" }, ...rows.flatMap(({ name, value }) => [
    el("dt", { text: name.slice(prefix.length) }),
    el("dd", {}, el("span", { class: "amount", text: percent(value, 1) }),
      el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: percent(value, 3) } }))),
  ]))];
}

/** @param {Strong} row */
function strong(row) {
  return el("li", {},
    el("span", { class: "amount", text: row.attention.toFixed(2) }), " ",
    el("span", { class: "quote" }, el("span", { text: visible(row.before) }), el("mark", { class: "key", text: visible(row.key) }),
      el("span", { text: visible(row.between) }), el("mark", { class: "query", text: visible(row.query) })),
    el("span", { class: "hint", text: ` ${counted(row.distance, "token")} back` }));
}

/** @param {Tested[]} rows */
function tested(rows) {
  return [
    el("h3", { text: "What contrasts found in it" }),
    tableOf(["contrast", "accuracy", "chance", "q"], rows.map((row) => [
      [el("span", { text: row.contrast, title: row.question }), row.best ? el("b", { text: " best head" }) : null],
      row.accuracy.toFixed(2), row.chance.toFixed(2), sureness(row.q),
    ]), { best: (i) => rows[i].best }),
    hint("Accuracy: how often it attends more to a positive key than to any negative one; q over all heads."),
  ];
}
