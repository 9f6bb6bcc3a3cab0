// What runs found in a head: each feature with its evidence, its spectrum, and where keys and queries lie in it.

import { el, fill } from "./dom.js";
import { percent, visible } from "./letters.js";
import { saveButtons } from "./saving.js";
import { scatterPlot } from "./scatter.js";
import { ask } from "./source.js";
import { spectrumPicture } from "./spectrum.js";
import { go } from "./state.js";

// Okabe and Ito's, then a grey; the same in light and dark
const COLORS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f7f7f"];

/**
 * @param {import("./source.js").Evidence} evidence
 * @param {{fail: (sentence: string) => void}} status
 */
export function featureCards(evidence, status) {
  if (!evidence.features.length) return [];
  return [el("h3", { text: "What runs found in it" }), ...evidence.features.map((feature) => card(evidence, feature, status))];
}

/**
 * @param {import("./source.js").Evidence} evidence
 * @param {import("./source.js").FeatureFacts} feature
 * @param {{fail: (sentence: string) => void}} status
 */
function card(evidence, feature, status) {
  const { head } = evidence;
  const place = el("div", {});
  const gap = feature.gap ? ` It prefers positive keys by ${(feature.gap.total ?? 0).toFixed(2)} ± ${(feature.gap.error ?? 0).toFixed(2)} logits.` : "";
  const q = feature.q === null ? "not known" : feature.q < 0.001 ? "< 0.001" : feature.q.toFixed(3);
  const texts = /** @type {HTMLInputElement} */ (el("input", { size: "12", value: evidence.texts[feature.run] ?? "", spellcheck: "false",
    "aria-label": `Texts for ${feature.name}: own, or a contrast of the shelf` }));
  const see = el("button", { type: "button", class: "plain", text: "See keys and queries" });
  see.addEventListener("click", () => {
    fill(place, el("p", { class: "hint", text: "Reading texts …" }));
    ask("seen", { head, run: feature.run, feature: feature.name, texts: texts.value.trim() })
      .then((found) => fill(place, ...seenPart(found, feature)), (error) => {
        fill(place);
        status.fail(error.message);
      });
  });
  return el("details", { class: "feature" },
    el("summary", {}, el("b", { text: feature.name }), ` (${feature.run}): rank ${feature.rank}, q ${q}`),
    el("p", { text: `${feature.evidence}.${gap} ${percent(feature.salience)} of its energy is salience. ${feature.n} examples.` }),
    el("p", { class: "hint", text: "Ranks: " + Object.entries(feature.ranks).map(([rule, rank]) => `${rule} ${rank ?? "not known"}`).join(", ") }),
    spectrumPicture(feature),
    el("p", { class: "controls" }, el("button", { type: "button", class: "plain", text: "What if it were exchanged?",
      on: { click: () => go({ view: "whatif", head, run: feature.run, features: feature.name, part: null }) } }),
      el("span", { text: "texts: own, or of the shelf" }), texts, see),
    place);
}

/**
 * @param {import("./source.js").Seen} found
 * @param {import("./source.js").FeatureFacts} feature
 */
function seenPart(found, feature) {
  const context = el("p", { class: "quote" });
  const plot = scatterPlot(`Keys and queries in ${feature.name}`, (example) => fill(context, visible(found.texts[Number(example)] ?? "")));
  const by = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "Colour by" }, el("option", { value: "-1", text: "positive or negative" }),
    ...found.labels.map((name, i) => el("option", { value: i, text: name }))));
  const legend = el("ul", { class: "legend" });
  const draw = () => {
    const label = Number(by.value);
    const value = (/** @type {import("./source.js").SeenKey} */ key) => (label < 0 ? (key.positive ? "positive key" : "negative key") : key.labels[label] ?? "none");
    const values = [...new Set(found.keys.map(value))];
    const colorOf = (/** @type {string} */ one) => COLORS[Math.min(values.indexOf(one), COLORS.length - 1)];
    const keys = found.keys.map((key) => ({ name: String(key.example), told: `key ${visible(key.token)}, ${value(key)}, prompt ${key.example + 1}`,
      x: key.at[0] ?? 0, y: key.at[1] ?? 0, color: colorOf(value(key)) }));
    const queries = found.queries.map((one) => ({ name: String(one.example), told: `query of prompt ${one.example + 1}`,
      x: one.at[0] ?? 0, y: one.at[1] ?? 0, color: "transparent", shape: "square" }));
    plot.show([...queries, ...keys], "first direction", "second direction");
    const shown = values.slice(0, COLORS.length).map((one) => el("li", {}, el("span", { class: "swatch", style: { background: colorOf(one) } }), one));
    fill(legend, ...shown, el("li", {}, el("span", { class: "swatch hollow" }), "query"));
  };
  by.addEventListener("change", draw);
  draw();
  return [
    el("p", { class: "computed", text: `By ${feature.name} alone the positive key comes first in ${percent(found.right)} ± ${percent(found.error)} of ${found.texts.length} texts.` }),
    el("p", { class: "controls" }, el("span", { text: "Colour by" }), by), legend, plot.element, context,
    el("p", { class: "hint", text: "Keys and queries are each centred and scaled; a match lies in one place. Click a point for its text." }),
    saveButtons(plot.picture, () => `keys ${feature.name}`),
    ...[["Strongest", found.strongest], ["Weakest that is right", found.weakest], ["Wrong", found.wrong]].flatMap(([title, rows]) =>
      listedTexts(String(title), /** @type {import("./source.js").SeenText[]} */ (rows))),
  ];
}

/**
 * @param {string} title
 * @param {import("./source.js").SeenText[]} rows
 */
function listedTexts(title, rows) {
  return [el("h3", { text: title }), rows.length ? el("ol", { class: "strongest" }, ...rows.map((row) => el("li", {},
    el("span", { class: "amount", text: `${(row.margin ?? 0).toFixed(2)} ` }), el("span", { class: "quote", text: visible(row.text) })))) :
    el("p", { class: "hint", text: "None." })];
}
