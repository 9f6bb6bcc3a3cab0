// The points that were chosen in a cloud, and one point's token in its text.

/** @import { Cloud } from "./source.js" */
import { button, el, tableOf } from "./dom.js";
import { counted, visible } from "./letters.js";
import { csvOf, saveText } from "./saving.js";

const AROUND = 12; // tokens on either side
const LISTED = 60;

/** What a point is: keys come first, then queries. @type {(cloud: Cloud, i: number) => string[]} */
function told(cloud, i) {
  const n = cloud.example.length;
  const query = i >= n;
  const labels = cloud.labels.map(({ name, keys, queries }) => [name, query ? queries[i - n] : keys[i]]).filter(([, value]) => value !== null);
  return [`${query ? "query" : cloud.positive[i] ? "positive key" : "negative key"} of prompt ${(query ? i - n : cloud.example[i]) + 1}`,
    ...labels.map(([name, value]) => `${name} ${visible(String(value))}`)];
}

/** What a point is, and its token in its text. @type {(cloud: Cloud, i: number) => HTMLElement[]} */
export function contextOf(cloud, i) {
  return [el("div", { text: told(cloud, i).join(", ") }), quoteOf(cloud, i)];
}

/** @type {(cloud: Cloud, i: number) => HTMLElement} */
function quoteOf(cloud, i) {
  const n = cloud.example.length;
  const text = cloud.texts[i >= n ? i - n : cloud.example[i]];
  if (!text) return el("span", { class: "hint", text: "Its text was not kept." });
  const last = text.length - 1;
  const place = i >= n ? last : cloud.places[i];
  const [from, to] = [Math.max(0, place - AROUND), Math.min(last, place + AROUND + 1)];
  const said = (/** @type {number} */ a, /** @type {number} */ b) => (a < b ? visible(text.slice(a, b).join("")) : null);
  const key = place < last ? [el("mark", { class: "key", text: visible(text[place]) }), said(place + 1, to), to < last ? " … " : null] : [];
  return el("span", { class: "quote" }, from ? "…" : null, said(from, place), ...key, el("mark", { class: "query", text: visible(text[last]) }));
}

/** The whole of one text, its query and positive keys marked. @type {(cloud: Cloud, example: number) => HTMLElement} */
export function textOf(cloud, example) {
  const text = cloud.texts[example];
  if (!text) return el("span", { class: "hint", text: `prompt ${example + 1}; its text was not kept` });
  const keys = cloud.places.filter((_, i) => cloud.example[i] === example && cloud.positive[i]);
  const kind = (/** @type {number} */ place) => (place === text.length - 1 ? "query" : keys.includes(place) ? "key" : "");
  return el("span", { class: "quote" }, ...text.map((token, place) =>
    kind(place) ? el("mark", { class: kind(place), text: visible(token) }) : visible(token)));
}

/** @type {(cloud: Cloud, chosen: number[], name: string, clear: () => void) => HTMLElement[]} */
export function chosenTable(cloud, chosen, name, clear) {
  if (!chosen.length) return [];
  const more = chosen.length > LISTED ? `, the first ${LISTED} are listed` : "";
  const rows = () => chosen.map((i) => [told(cloud, i).join("; "), quoteOf(cloud, i).textContent ?? ""]);
  return [
    el("p", { class: "controls" }, el("b", { text: `${counted(chosen.length, "point")} chosen${more}` }),
      button("Save as CSV", () => saveText(`points ${name}.csv`, "text/csv", csvOf(["point", "text"], rows()))), button("Let go", clear)),
    el("div", { class: "chosen-points" }, tableOf(["point", "in its text"], chosen.slice(0, LISTED).map((i) => [told(cloud, i).join(", "), quoteOf(cloud, i)]),
      { words: ["point", "in its text"], label: "Chosen points" })),
  ];
}
