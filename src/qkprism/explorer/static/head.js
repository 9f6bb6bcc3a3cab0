// One head: where it looks on plain text, what decides, where it attends most, and what contrasts found in it.

import { el, fill } from "./dom.js";
import { featureCards } from "./features.js";
import { sureness, visible } from "./letters.js";
import { ask } from "./source.js";
import { go } from "./state.js";

const GROUPS = [
  ["attention: ", "Where its attention goes on plain text"],
  ["decides: ", "What decides, on held-out text"],
];

/** @param {{busy: (sentence: string) => void, fail: (sentence: string) => void}} status */
export function headPanel(status) {
  const element = el("section", { class: "card head-panel", "aria-live": "polite", "aria-label": "Head" });
  let shown = "";

  async function look(
    /** @type {import("./source.js").Heads} */ heads,
    /** @type {string|null} */ name,
    /** @type {AbortSignal} */ signal,
  ) {
    if (!name) {
      shown = "";
      return fill(element, el("h2", { text: "Choose a head" }),
        el("p", { class: "hint", text: "Click a cell of the map, or write a name such as L18H6 and press Enter." }));
    }
    if (shown === `${name} ${heads.columns.length}`) return;
    if (!element.childElementCount) status.busy(`Opening ${name} …`);
    try {
      const facts = await ask("head", { head: name }, signal);
      const evidence = /** @type {import("./source.js").Evidence} */ (await ask("evidence", { head: name }, signal));
      shown = `${name} ${heads.columns.length}`;
      fill(element, ...described(heads, facts, evidence.sentence, featureCards(evidence, status)));
    } catch (error) {
      if (!signal.aborted) fill(element, el("h2", { text: name }));
      shown = "";
      throw error;
    }
  }

  return { element, look };
}

/**
 * @param {import("./source.js").Heads} heads
 * @param {import("./source.js").HeadFacts} facts
 * @param {string} verdict
 * @param {HTMLElement[]} features
 */
function described(heads, facts, verdict, features) {
  const at = heads.heads.findIndex(([layer, index]) => `L${layer}H${index}` === facts.head);
  const scores = heads.columns.map(({ name, values }) => ({ name, value: values[at] }));
  return [
    el("h2", { text: facts.head }),
    el("p", { class: "head-sentence", text: verdict || summary(scores) }),
    verdict ? el("p", { text: summary(scores) }) : null,
    el("p", {}, el("button", {
      type: "button", class: "primary", text: `Ask why with ${facts.head}`, on: { click: () => go({ view: "why", head: facts.head, key: null }) },
    })),
    ...features,
    ...(facts.tested.length ? tested(facts.tested) : []),
    ...GROUPS.flatMap(([prefix, title]) => meters(scores, prefix, title)),
    ...(facts.strongest.length ? [el("h3", { text: "Where it attends most, in held-out text" }),
      el("ol", { class: "strongest" }, ...facts.strongest.map(strong))] : []),
  ];
}

/**
 * One sentence made from the scores.
 * @param {{name: string, value: number|null}[]} scores
 */
function summary(scores) {
  const of = (/** @type {string} */ prefix) =>
    scores.filter((one) => one.name.startsWith(prefix) && one.value !== null)
      .sort((a, b) => (b.value ?? 0) - (a.value ?? 0))[0];
  const percent = (/** @type {number|null|undefined} */ value) => `${(100 * (value ?? 0)).toFixed(0)}%`;
  const [look, decide] = [of("attention: "), of("decides: ")];
  if (!look || !decide) return "";
  const off = scores.find((one) => one.name === "variation: + asked position")?.value;
  const rebuilt = off === null || off === undefined ? "" :
    ` Without any match of query and key its rows are rebuilt to within ${off.toFixed(2)} of total variation.`;
  return `On plain text ${percent(look.value)} of its attention goes to: ${look.name.slice(11)}. What most often decides ` +
    `is ${decide.name.slice(9)} (${percent(decide.value)} of rows).${rebuilt}`;
}

/**
 * @param {{name: string, value: number|null}[]} scores
 * @param {string} prefix
 * @param {string} title
 */
function meters(scores, prefix, title) {
  const rows = scores.filter((one) => one.name.startsWith(prefix) && one.value !== null);
  if (!rows.length) return []; // no atlas is open
  return [el("h3", { text: title }), el("dl", { class: "meters" }, ...rows.flatMap(({ name, value }) => [
    el("dt", { text: name.slice(prefix.length) }),
    el("dd", {}, el("span", { class: "amount", text: `${(100 * (value ?? 0)).toFixed(1)}%` }),
      el("span", { class: "meter", "aria-hidden": "true" }, el("span", { style: { width: `${100 * (value ?? 0)}%` } }))),
  ]))];
}

/** @param {import("./source.js").Strong} row */
function strong(row) {
  return el("li", {},
    el("span", { class: "amount", text: row.attention.toFixed(2) }), " ",
    el("span", { class: "quote" }, el("span", { text: visible(row.before) }), el("mark", { class: "key", text: visible(row.key) }),
      el("span", { text: visible(row.between) }), el("mark", { class: "query", text: visible(row.query) })),
    el("span", { class: "hint", text: ` ${row.distance} ${row.distance === 1 ? "token" : "tokens"} back` }));
}

/** @param {import("./source.js").Tested[]} rows */
function tested(rows) {
  const head = ["contrast", "accuracy", "chance", "q"].map((text) => el("th", { scope: "col", text }));
  return [
    el("h3", { text: "What contrasts found in it" }),
    el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...head)),
      el("tbody", {}, ...rows.map((row) => el("tr", { class: row.best ? "best" : "", title: row.question },
        el("td", {}, el("span", { text: row.contrast }), row.best ? el("b", { text: " best head" }) : null),
        el("td", { text: row.accuracy.toFixed(2) }),
        el("td", { text: row.chance.toFixed(2) }),
        el("td", { text: sureness(row.q) })))))),
    el("p", { class: "hint", text: "Accuracy: how often it attends more to a positive key than to any negative one; q over all heads." }),
  ];
}
