// A table, and the same as CSV.

import { el } from "./dom.js";

/**
 * @param {string[]} names
 * @param {(string|Node)[][]} rows
 * @param {{words?: string[], marked?: string|null}} [how] `words`: columns of sentences, which begin at the left; `marked`:
 *   rows with this cell stand out
 */
export function tableOf(names, rows, how = {}) {
  const marked = (/** @type {(string|Node)[]} */ row) => (how.marked && row.includes(how.marked) ? "best" : "");
  const kind = (/** @type {number} */ i) => (how.words?.includes(names[i]) ? "words" : "");
  return el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...names.map((text, i) => el("th", { scope: "col", class: kind(i), text })))),
    el("tbody", {}, ...rows.map((row) => el("tr", { class: marked(row) }, ...row.map((cell, i) => el("td", { class: kind(i) }, cell)))))));
}

/**
 * Rows as CSV. A cell that a spreadsheet would take for a formula gets an apostrophe in front.
 * @param {string[]} names
 * @param {(string|number|boolean|null)[][]} rows
 */
export function csvOf(names, rows) {
  const cell = (/** @type {string|number|boolean|null} */ value) => {
    const text = value === null ? "" : String(value);
    const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
