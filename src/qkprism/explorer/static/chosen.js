// The points that were chosen in a cloud, and one point's token in its text.

import { el } from "./dom.js";
import { counted, visible } from "./letters.js";
import { saveText } from "./saving.js";

const AROUND = 12; // tokens on either side
const LISTED = 60;

/**
 * What a point is, and its token in its text.
 * @param {import("./source.js").Cloud} cloud
 * @param {number} i
 */
export function contextOf(cloud, i) {
  return [el("div", { text: told(cloud, i).join(", ") }), quoteOf(cloud, i)];
}

/**
 * @param {import("./source.js").Cloud} cloud
 * @param {number} i keys come first, then queries
 */
function told(cloud, i) {
  const n = cloud.example.length;
  const query = i >= n;
  const labels = cloud.labels.map(({ name, keys, queries }) => [name, query ? queries[i - n] : keys[i]]).filter(([, value]) => value !== null);
  return [`${query ? "query" : cloud.positive[i] ? "positive key" : "negative key"} of prompt ${(query ? i - n : cloud.example[i]) + 1}`,
    ...labels.map(([name, value]) => `${name} ${visible(String(value))}`)];
}

/**
 * @param {import("./source.js").Cloud} cloud
 * @param {number} i
 */
function quoteOf(cloud, i) {
  const n = cloud.example.length;
  const text = cloud.texts[i >= n ? i - n : cloud.example[i]];
  if (!text) return el("span", { class: "hint", text: "Its text was not kept." });
  const last = text.length - 1;
  const place = i >= n ? last : cloud.places[i];
  const [from, to] = [Math.max(0, place - AROUND), Math.min(last, place + AROUND)];
  const said = (/** @type {number} */ a, /** @type {number} */ b) => el("span", { text: visible(text.slice(a, b).join("")) });
  const query = el("mark", { class: "query", text: visible(text[last]) });
  if (place === last) return el("span", { class: "quote" }, from ? "…" : null, from < last ? said(from, last) : null, query);
  return el("span", { class: "quote" }, from ? "…" : null, from < place ? said(from, place) : null, el("mark", { class: "key", text: visible(text[place]) }),
    place + 1 < Math.min(to + 1, last) ? said(place + 1, Math.min(to + 1, last)) : null, to < last - 1 ? " … " : null, query);
}

/**
 * The whole of one text, its query marked.
 * @param {import("./source.js").Cloud} cloud
 * @param {number} example
 */
export function textOf(cloud, example) {
  const text = cloud.texts[example];
  if (!text) return el("span", { class: "hint", text: `prompt ${example + 1}; its text was not kept` });
  const keys = cloud.example.map((one, i) => ({ one, i })).filter(({ one, i }) => one === example && cloud.positive[i]).map(({ i }) => cloud.places[i]);
  const last = text.length - 1;
  return el("span", { class: "quote" }, ...text.map((token, place) => (place === last ? el("mark", { class: "query", text: visible(token) })
    : keys.includes(place) ? el("mark", { class: "key", text: visible(token) }) : visible(token))));
}

/**
 * @param {import("./source.js").Cloud} cloud
 * @param {number[]} chosen
 * @param {string} name
 * @param {() => void} clear
 */
export function chosenTable(cloud, chosen, name, clear) {
  if (!chosen.length) return [];
  const rows = chosen.slice(0, LISTED).map((i) => el("tr", {}, el("td", { class: "words", text: told(cloud, i).join(", ") }), el("td", { class: "words" }, quoteOf(cloud, i))));
  const more = chosen.length > LISTED ? `, the first ${LISTED} are listed` : "";
  const csv = () => saveText(`points ${name}.csv`, "text/csv", ["point,text", ...chosen.map((i) =>
    [told(cloud, i).join("; "), quoteOf(cloud, i).textContent ?? ""].map((cell) => `"${cell.replaceAll('"', '""')}"`).join(","))].join("\n"));
  return [
    el("p", { class: "controls" }, el("b", { text: `${counted(chosen.length, "point")} chosen${more}` }),
      el("button", { type: "button", class: "link", text: "Save as CSV", on: { click: csv } }),
      el("button", { type: "button", class: "link", text: "Let go", on: { click: clear } })),
    el("div", { class: "chosen-points scroll", tabindex: "0", role: "region", "aria-label": "Chosen points" },
      el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "point" }), el("th", { scope: "col", text: "in its text" }))), el("tbody", {}, ...rows))),
  ];
}
