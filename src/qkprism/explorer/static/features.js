// What runs found in a head: each feature with its evidence, its spectrum, its proofs, and where keys and queries lie.

/** @import { Cloud, EditedFacts, Evidence, FeatureFacts, SeenText } from "./source.js" */
import { textOf } from "./chosen.js";
import { cloudView } from "./cloud.js";
import { button, el, fill, hint, select } from "./dom.js";
import { percent, sureness } from "./letters.js";
import { proofParts, spectrumPicture } from "./proofs.js";
import { ask, mailed } from "./source.js";
import { go } from "./state.js";
import { status } from "./status.js";

const COUNTS = [64, 200, 400];
const SOURCES = new Map([["own", "its own contrast"], ["stored", "kept with the study"]]);

/** @param {Evidence} evidence */
export function featureCards(evidence) {
  const open = evidence.features.length < 3;
  /** @type {Map<string, HTMLElement[]>} */
  const runs = new Map();
  for (const feature of evidence.features) {
    const [run] = feature.run.split(" / ");
    const cards = runs.get(run) ?? [];
    runs.set(run, [...cards, card(evidence, feature, open || !cards.length)]);
  }
  for (const edited of evidence.edited) runs.set(edited.run, [...(runs.get(edited.run) ?? []), editedCard(edited)]);
  if (!runs.size) return [];
  const columns = [...runs].map(([run, cards]) =>
    el("section", { "aria-label": run }, runs.size > 1 ? el("h4", { text: run }) : null, ...cards));
  return [el("h3", { text: runs.size > 1 ? "What runs found in it, side by side" : "What runs found in it" }),
    ...(evidence.problems ?? []).map((text) => el("p", { class: "problem", text })),
    el("div", { class: runs.size > 1 ? "runs-beside several" : "runs-beside" }, ...columns)];
}

/** @type {(evidence: Evidence, feature: FeatureFacts, open: boolean) => HTMLElement} */
function card(evidence, feature, open) {
  const { head } = evidence;
  const gap = feature.gap ? ` It prefers positive keys by ${(feature.gap.total ?? 0).toFixed(2)} ± ${(feature.gap.error ?? 0).toFixed(2)} logits.` : "";
  return el("details", { class: "feature", open },
    el("summary", {}, el("b", { text: feature.name }), ` (${feature.run}): rank ${feature.rank}, q ${sureness(feature.q)}`),
    el("p", { text: `${feature.evidence}.${gap} ${percent(feature.salience)} of its energy is salience. ${feature.n} examples.` }),
    hint("Ranks: " + Object.entries(feature.ranks).map(([rule, rank]) => `${rule} ${rank ?? "not known"}`).join(", ")),
    spectrumPicture(feature),
    ...proofParts(feature),
    el("p", {}, button("What if it were exchanged?", () => go({ view: "whatif", head, run: feature.run, features: feature.name, part: null }), { class: "plain" })),
    seeing(evidence, feature));
}

/** A feature of which only proofs are open: those of a run of effects. @param {EditedFacts} edited */
function editedCard(edited) {
  return el("details", { class: "feature", open: true }, el("summary", {}, el("b", { text: edited.name }), ` (${edited.run})`), ...proofParts(edited));
}

/** Keys and queries of texts that one chooses. @type {(evidence: Evidence, feature: FeatureFacts) => HTMLElement} */
function seeing(evidence, feature) {
  const place = el("div", { "aria-live": "polite" });
  const names = evidence.texts[feature.run] ?? [];
  if (!names.length) return place;
  const texts = select(`Texts for ${feature.name}`, names.map((name) => [name, SOURCES.get(name) ?? name]));
  const count = select("How many texts", COUNTS.map((n) => [n, `${n} texts`]));
  const umap = el("input", { type: "checkbox" });
  const see = button("See keys and queries", async () => {
    fill(place, hint(umap.checked ? "Reading texts, and laying them out by neighbours …" : "Reading texts …"));
    const wanted = { head: evidence.head, run: feature.run, feature: feature.name, texts: texts.value, n: Number(count.value), umap: umap.checked };
    try {
      fill(place, ...seenPart(await ask("seen", wanted), feature.name));
    } catch (error) {
      fill(place);
      status.fail(error);
    }
  }, { class: "plain" });
  return el("div", {}, el("p", { class: "controls" }, see, el("span", { text: "of" }), texts, mailed ? null : count,
    evidence.umap ? el("label", { class: "choice" }, umap, " UMAP too") : null), place);
}

/** @type {(found: Cloud, name: string) => HTMLElement[]} */
function seenPart(found, name) {
  return [
    el("p", { class: "computed", text: `By ${name} alone the positive key comes first in ${percent(found.right)} ± ${percent(found.error)} of ${found.n} texts.` }),
    cloudView(found, name),
    hint("Keys and queries are each centred and scaled, so a match lies in one place. A query has the label of the key it should find."),
    ...listedTexts(found, "Strongest", found.strongest),
    ...listedTexts(found, "Weakest that is right", found.weakest),
    ...listedTexts(found, "Wrong", found.wrong),
  ];
}

/** @type {(found: Cloud, title: string, rows: SeenText[]) => HTMLElement[]} */
function listedTexts(found, title, rows) {
  return [el("h4", { text: `${title}: by how many logits the positive key leads` }), rows.length ? el("ol", { class: "strongest" }, ...rows.map((row) =>
    el("li", {}, el("span", { class: "amount", text: `${(row.margin ?? 0).toFixed(2)} ` }), textOf(found, row.example)))) : hint("None.")];
}
