// The scores of heads: which is shown first, and a list to choose from.

import { el } from "./dom.js";

/**
 * The score that is shown first: what contrasts found if there are any, else who copies what followed before.
 * @param {import("./source.js").Column[]} columns
 */
export function usualColumn(columns) {
  const first = columns.find((one) => one.name.startsWith("accuracy: ") || one.name.startsWith("held-out t: "));
  return first ?? columns.find((one) => one.name === "attention: after the same token") ?? columns[0];
}

/**
 * @param {import("./source.js").Column[]} columns
 * @param {string|null} name
 */
export function columnNamed(columns, name) {
  return columns.find((one) => one.name === name);
}

/**
 * Options of a select, in groups.
 * @param {import("./source.js").Column[]} columns
 */
export function columnOptions(columns) {
  const groups = new Map();
  for (const { name } of columns) {
    const group = name.includes(": ") ? name.slice(0, name.indexOf(": ")) : "other";
    if (!groups.has(group)) groups.set(group, el("optgroup", { label: group }));
    groups.get(group).append(el("option", { value: name, text: name }));
  }
  return [...groups.values()];
}
