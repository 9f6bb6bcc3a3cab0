// Links within the page: the name of a head, which opens it, and numbers that lead to what they are from.

import { el } from "./dom.js";
import { addressOf, go } from "./state.js";

/** @param {string} head */
export function headLink(head) {
  return stateLink(head, { view: "heads", head });
}

/**
 * A link to another state of the page.
 * @param {string} text
 * @param {Partial<import("./state.js").State>} there
 * @param {{class?: string, title?: string|null}} [how]
 */
export function stateLink(text, there, how = {}) {
  const link = el("a", { class: how.class ?? "link", href: addressOf(there), title: how.title, text });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window
    event.preventDefault();
    go(there);
  });
  return link;
}
