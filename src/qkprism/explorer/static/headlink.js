// The name of a head, which opens it.

import { el } from "./dom.js";
import { go } from "./state.js";

/** @param {string} head */
export function headLink(head) {
  return el("button", { type: "button", class: "link", text: head, on: { click: () => go({ view: "heads", head }) } });
}
