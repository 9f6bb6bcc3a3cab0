// Sentences with links: heads open, numbers and tables lead to what they are made of.

import { el } from "./dom.js";
import { headLink } from "./headlink.js";
import { go } from "./state.js";

/**
 * @param {import("./source.js").Piece[]} sentence
 * @returns {(string|HTMLElement)[]}
 */
export function pieces(sentence) {
  return sentence.map((piece) => {
    if (typeof piece === "string") return piece;
    if ("head" in piece) return headLink(piece.head);
    const there = piece.go;
    return el("button", { type: "button", class: "link", text: piece.text, on: { click: () => go(there) } });
  });
}
