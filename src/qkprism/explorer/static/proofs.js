// The evidence for a feature as pictures: its spectrum beside its nulls, an edit of it beside every control, and texts in
// which it was really exchanged.

/** @import { EditedFacts, EffectFacts, EffectRow, FeatureFacts } from "./source.js" */
import { el, hint, svg, tableOf } from "./dom.js";
import { percent } from "./letters.js";
import { pieces } from "./links.js";

const WIDTH_OF = 300;
const HEIGHT_OF = 150;
const AT_LEFT = 38;
const BELOW = 30;
const ABOVE = 8;

/** Strengths, and the held-out t of every direction. @param {FeatureFacts} feature */
export function spectrumPicture(feature) {
  return el("div", { class: "halves columns spectra" },
    panel("strength", feature, feature.strength, [["null", feature.null], ["shuffled", feature.shuffled]]),
    panel("held-out t", feature, feature.t, [["threshold", feature.t.map(() => feature.threshold)]]));
}

/** @type {(title: string, feature: FeatureFacts, values: (number|null)[], lines: [string, (number|null)[]][]) => HTMLElement} */
function panel(title, feature, values, lines) {
  const all = [...values, ...lines.flatMap(([, line]) => line)].filter((one) => one !== null);
  const [low, high] = [Math.min(0, ...all), Math.max(1e-9, ...all)];
  const step = (WIDTH_OF - AT_LEFT - 4) / values.length;
  const y = (/** @type {number} */ value) => HEIGHT_OF - BELOW - ((HEIGHT_OF - BELOW - ABOVE) * (value - low)) / (high - low);
  const bars = values.map((value, i) => svg("rect", {
    x: AT_LEFT + i * step + 1, width: Math.max(1, step - 2), y: Math.min(y(value ?? 0), y(0)), height: Math.abs(y(value ?? 0) - y(0)),
    class: i < feature.rank ? "direction within" : "direction" }));
  const drawn = lines.map(([kind, line]) => svg("polyline", {
    points: line.map((value, i) => `${AT_LEFT + (i + 0.5) * step},${y(value ?? 0)}`).join(" "), class: `null-line ${kind}` }));
  const told = `${title} of ${feature.name}, direction by direction: ${values.slice(0, 5).map((one) => (one ?? 0).toFixed(2)).join(", ")}` +
    `; ${lines.map(([kind, line]) => `${kind} ${(line[0] ?? 0).toFixed(2)}`).join(", ")}`;
  return el("figure", {}, svg("svg", { viewBox: `0 0 ${WIDTH_OF} ${HEIGHT_OF}`, class: "spectrum", role: "img", "aria-label": told },
    ...bars, ...drawn, svg("line", { x1: AT_LEFT, x2: WIDTH_OF, y1: y(0), y2: y(0), class: "zero" }),
    svg("text", { x: AT_LEFT - 4, y: y(high) + 8, class: "tick-text", "text-anchor": "end", text: high.toPrecision(2) }),
    svg("text", { x: AT_LEFT - 4, y: y(0) + 3, class: "tick-text", "text-anchor": "end", text: "0" }),
    svg("text", { x: (AT_LEFT + WIDTH_OF) / 2, y: HEIGHT_OF - 8, class: "tick-text", "text-anchor": "middle", text: `direction, 1 to ${values.length}` })),
  el("figcaption", { class: "hint", text: title === "strength" ? "Strength; lines: the highest that random signs reach, and (dashed) reshuffled labels." :
    "Held-out t; the line is what chance does not reach." }));
}

/** @param {EditedFacts} feature */
export function proofParts(feature) {
  const nothing = "No edit of it was measured in these runs: `qkprism intervene` proves that it acts.";
  if (!feature.effects.length && !feature.checks.length) return [el("p", { class: "hint" }, ...pieces([nothing]))];
  return [...feature.effects.map(effectPart), ...(feature.checks.length ? [checksPart(feature)] : [])];
}

/** @param {EffectFacts} effect */
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
    hint(`${effect.n} held-out examples, by the ${effect.method} directions, ${effect.rank} of them (${effect.source}). ` +
      "Filled: the feature. Hollow: the same edit in other subspaces of this size; bars are one standard error. Upright: no edit, and the whole key."));
}

/** @type {(row: EffectRow, x: (value: number) => number) => HTMLElement} */
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

/** @param {EditedFacts} feature */
function checksPart({ checks, name }) {
  const heads = ["method", "true part", "its part", "off by", "logit error left", "two keys", "whole truth"];
  const told = (/** @type {number|null} */ value) => (value === null ? "–" : value.toFixed(2));
  const several = new Set(checks.map((check) => check.features)).size > 1;
  const clear = checks.find((check) => check.matters && check.method === "contrast") ?? checks.find((check) => check.matters) ?? checks[0];
  return el("div", { class: "proof" },
    el("h4", { text: `Beside texts in which ${name} was really exchanged` }),
    el("p", { text: clear.sentence }),
    tableOf(heads, checks.map((check) => [
      several ? `${check.features} ${check.method}` : check.method, `${told(check.true_part)} ± ${told(check.true_part_error)}`,
      told(check.part), percent(check.relative_part_error), told(check.logit), told(check.tv_pair), told(check.tv),
    ]), { label: `True counterfactuals of ${name}` }),
    hint(`${clear.n} pairs (${clear.source}). Logit error, and distances to the truth of the two keys and to the whole truth, as shares of those without an edit: 1 is no better, 0 is perfect.`));
}
