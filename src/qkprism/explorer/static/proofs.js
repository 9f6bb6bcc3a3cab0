// What proves a feature: an edit of it beside every control, and texts in which it was really exchanged.

import { el, svg } from "./dom.js";
import { percent } from "./letters.js";

/** @param {import("./source.js").EditedFacts} feature */
export function proofParts(feature) {
  return [
    ...feature.effects.map(effectPart),
    ...(feature.checks.length ? [checksPart(feature)] : []),
    ...(feature.effects.length || feature.checks.length ? []
      : [el("p", { class: "hint", text: "No edit of it was measured in these runs: `qkprism intervene` proves that it acts." })]),
  ];
}

/** @param {import("./source.js").EffectFacts} effect */
function effectPart(effect) {
  const ends = effect.rows.flatMap((row) => [(row.gain ?? 0) - (row.error ?? 0), (row.gain ?? 0) + (row.error ?? 0)]);
  let [low, high] = [Math.min(0, ...ends), Math.max(0.001, ...ends)];
  const room = 0.04 * (high - low);
  [low, high] = [low - room, high + room];
  const x = (/** @type {number} */ value) => (100 * (value - low)) / (high - low);
  const towards = effect.target === "given" ? "" : `, towards a key that differs in ${effect.target}`;
  return el("div", { class: "proof" },
    el("h4", { text: `${effect.did}${towards}: ${effect.compared} moves by` }),
    el("ul", { class: "proofs" }, ...effect.rows.map((row) => effectRow(row, x))),
    el("p", { class: "hint", text: `${effect.n} held-out examples, by the ${effect.method} directions, ${effect.rank} of them (${effect.source}). ` +
      "Filled: the feature. Hollow: the same edit in other subspaces of this size; bars are one standard error. Upright: no edit, and the whole key." }));
}

/**
 * @param {import("./source.js").EffectRow} row
 * @param {(value: number) => number} x
 */
function effectRow(row, x) {
  const [gain, error] = [row.gain ?? 0, row.error ?? 0];
  const at = `${x(gain)}%`;
  const own = row.control === "feature";
  const end = !own && !row.rival;
  const mark = end ? svg("line", { x1: at, x2: at, y1: 1, y2: 17, class: "mark-end" })
    : svg("circle", { cx: at, cy: 9, r: 5, class: own ? "mark-own" : "mark-control" });
  const more = row.beaten === null || row.beaten === undefined ? ""
    : row.evidence ? (row.beaten ? "beaten" : "not beaten") : "no evidence";
  const lead = row.advantage === null ? "" : ` The feature moves ${row.advantage.toFixed(3)} ± ${(row.advantage_error ?? 0).toFixed(3)} more.`;
  return el("li", { class: own ? "proof-row own" : "proof-row", title: `${row.meaning}.${lead}` },
    el("span", { text: row.title }),
    svg("svg", { "aria-hidden": "true" }, svg("line", { x1: `${x(0)}%`, x2: `${x(0)}%`, y1: 0, y2: 18, class: "gridline" }),
      svg("line", { x1: `${x(gain - error)}%`, x2: `${x(gain + error)}%`, y1: 9, y2: 9, class: "error-bar" }), mark),
    el("span", { class: "amount", text: `${gain < 0 ? "−" : "+"}${Math.abs(gain).toFixed(3)} ± ${error.toFixed(3)}` }),
    el("span", { class: "hint", text: more }));
}

/** @param {import("./source.js").EditedFacts} feature */
function checksPart({ checks, name }) {
  const heads = ["method", "true part", "its part", "off by", "logit error left", "two keys", "whole truth"];
  const told = (/** @type {number|null} */ value) => (value === null ? "–" : value.toFixed(2));
  const several = new Set(checks.map((check) => check.features)).size > 1;
  const clear = checks.find((check) => check.matters && check.method === "contrast") ?? checks.find((check) => check.matters) ?? checks[0];
  return el("div", { class: "proof" },
    el("h4", { text: `Beside texts in which ${name} was really exchanged` }),
    el("p", { text: clear.sentence }),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `True counterfactuals of ${name}` }, el("table", {},
      el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col", text })))),
      el("tbody", {}, ...checks.map((check) => el("tr", {},
        el("td", { text: several ? `${check.features} ${check.method}` : check.method }),
        el("td", { text: `${told(check.true_part)} ± ${told(check.true_part_error)}` }),
        el("td", { text: told(check.part) }), el("td", { text: percent(check.relative_part_error) }),
        el("td", { text: told(check.logit) }), el("td", { text: told(check.tv_pair) }), el("td", { text: told(check.tv) })))))),
    el("p", { class: "hint", text: `${clear.n} pairs (${clear.source}). Logit error, and distances to the truth of the two keys and to the whole truth, as shares of those without an edit: 1 is no better, 0 is perfect.` }));
}
