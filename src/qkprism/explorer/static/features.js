// What runs found in a head: each feature with its evidence, its spectrum, its proofs, and where keys and queries lie.

import { textOf } from "./chosen.js";
import { cloudView } from "./cloud.js";
import { el, fill } from "./dom.js";
import { percent, sureness } from "./letters.js";
import { proofParts } from "./proofs.js";
import { ask, mailed } from "./source.js";
import { spectrumPicture } from "./spectrum.js";
import { go } from "./state.js";

const COUNTS = [64, 200, 400];
const SOURCES = new Map([["own", "its own contrast"], ["stored", "kept with the study"]]);

/**
 * @param {import("./source.js").Evidence} evidence
 * @param {{fail: (sentence: string) => void}} status
 */
export function featureCards(evidence, status) {
  const open = evidence.features.length < 3;
  const runs = new Map();
  for (const feature of evidence.features) {
    const [run] = feature.run.split(" / ");
    const cards = runs.get(run) ?? [];
    runs.set(run, [...cards, card(evidence, feature, status, open || !cards.length)]);
  }
  for (const edited of evidence.edited) runs.set(edited.run, [...(runs.get(edited.run) ?? []), editedCard(edited)]);
  if (!runs.size) return [];
  const columns = [...runs].map(([run, cards]) =>
    el("section", { "aria-label": run }, runs.size > 1 ? el("h4", { text: run }) : null, ...cards));
  return [el("h3", { text: runs.size > 1 ? "What runs found in it, side by side" : "What runs found in it" }),
    ...(evidence.problems ?? []).map((text) => el("p", { class: "problem", text })),
    el("div", { class: runs.size > 1 ? "runs-beside several" : "runs-beside" }, ...columns)];
}

/**
 * @param {import("./source.js").Evidence} evidence
 * @param {import("./source.js").FeatureFacts} feature
 * @param {{fail: (sentence: string) => void}} status
 * @param {boolean} open
 */
function card(evidence, feature, status, open) {
  const { head } = evidence;
  const gap = feature.gap ? ` It prefers positive keys by ${(feature.gap.total ?? 0).toFixed(2)} ± ${(feature.gap.error ?? 0).toFixed(2)} logits.` : "";
  return el("details", { class: "feature", open },
    el("summary", {}, el("b", { text: feature.name }), ` (${feature.run}): rank ${feature.rank}, q ${sureness(feature.q)}`),
    el("p", { text: `${feature.evidence}.${gap} ${percent(feature.salience)} of its energy is salience. ${feature.n} examples.` }),
    el("p", { class: "hint", text: "Ranks: " + Object.entries(feature.ranks).map(([rule, rank]) => `${rule} ${rank ?? "not known"}`).join(", ") }),
    spectrumPicture(feature),
    ...proofParts(feature),
    el("p", {}, el("button", { type: "button", class: "plain", text: "What if it were exchanged?",
      on: { click: () => go({ view: "whatif", head, run: feature.run, features: feature.name, part: null }) } })),
    seeing(evidence, feature, status));
}

/**
 * A feature of which only proofs are open: those of a run of effects.
 * @param {import("./source.js").EditedFacts} edited
 */
function editedCard(edited) {
  return el("details", { class: "feature", open: true }, el("summary", {}, el("b", { text: edited.name }), ` (${edited.run})`), ...proofParts(edited));
}

/**
 * Keys and queries of texts that one chooses.
 * @param {import("./source.js").Evidence} evidence
 * @param {import("./source.js").FeatureFacts} feature
 * @param {{fail: (sentence: string) => void}} status
 */
function seeing(evidence, feature, status) {
  const place = el("div", { "aria-live": "polite" });
  if (!evidence.texts[feature.run]?.length) return place;
  const select = (/** @type {string} */ told, /** @type {[string, string][]} */ options) => /** @type {HTMLSelectElement} */ (
    el("select", { "aria-label": told }, ...options.map(([value, text]) => el("option", { value, text }))));
  const texts = select(`Texts for ${feature.name}`, (evidence.texts[feature.run] ?? []).map((name) => [name, SOURCES.get(name) ?? name]));
  const count = select("How many texts", COUNTS.map((n) => [String(n), `${n} texts`]));
  const umap = /** @type {HTMLInputElement} */ (el("input", { type: "checkbox" }));
  const see = el("button", { type: "button", class: "plain", text: "See keys and queries" });
  see.addEventListener("click", () => {
    fill(place, el("p", { class: "hint", text: umap.checked ? "Reading texts, and laying them out by neighbours …" : "Reading texts …" }));
    ask("seen", { head: evidence.head, run: feature.run, feature: feature.name, texts: texts.value, n: Number(count.value), umap: umap.checked })
      .then((found) => fill(place, ...seenPart(found, feature)), (error) => {
        fill(place);
        status.fail(error.message);
      });
  });
  return el("div", {}, el("p", { class: "controls" }, see, el("span", { text: "of" }), texts, mailed ? null : count,
    evidence.umap ? el("label", { class: "choice" }, umap, " UMAP too") : null), place);
}

/**
 * @param {import("./source.js").Cloud} found
 * @param {import("./source.js").FeatureFacts} feature
 */
export function seenPart(found, feature) {
  return [
    el("p", { class: "computed", text: `By ${feature.name} alone the positive key comes first in ${percent(found.right)} ± ${percent(found.error)} of ${found.n} texts.` }),
    cloudView(found, feature.name).element,
    el("p", { class: "hint", text: "Keys and queries are each centred and scaled, so a match lies in one place. A query has the label of the key it should find." }),
    ...[["Strongest", found.strongest], ["Weakest that is right", found.weakest], ["Wrong", found.wrong]].flatMap(([title, rows]) =>
      listedTexts(found, String(title), /** @type {import("./source.js").SeenText[]} */ (rows))),
  ];
}

/**
 * @param {import("./source.js").Cloud} found
 * @param {string} title
 * @param {import("./source.js").SeenText[]} rows
 */
function listedTexts(found, title, rows) {
  return [el("h4", { text: `${title}: by how many logits the positive key leads` }), rows.length ? el("ol", { class: "strongest" }, ...rows.map((row) => el("li", {},
    el("span", { class: "amount", text: `${(row.margin ?? 0).toFixed(2)} ` }), textOf(found, row.example)))) :
    el("p", { class: "hint", text: "None." })];
}
