// A text as tokens that can be marked: each mark has a sign, a colour and a word, so that colour is never alone.

import { el, fill } from "./dom.js";
import { roving, setStop } from "./keys.js";
import { visible } from "./letters.js";

/** @typedef {{sign: string, kind: string, told: string}} Mark */

/**
 * @param {string} label what the group is, for who cannot see it
 * @param {(place: number) => void} choose
 */
export function markedTokens(label, choose) {
  const line = el("div", { class: "tokens", role: "group", "aria-label": label });
  const element = el("div", { class: "text marked-text" }, line);
  /** @type {HTMLElement[]} */
  let buttons = [];
  /** @type {string[]} */
  let shown = [];
  roving(line, { lines: true });
  line.addEventListener("click", (event) => {
    const button = /** @type {HTMLElement} */ (event.target).closest("[data-place]");
    if (button) choose(Number(/** @type {HTMLElement} */ (button).dataset.place));
  });

  function show(
    /** @type {string[]} */ tokens,
    /** @type {Map<number, Mark>} */ marks,
    /** @type {(number|null)[]} */ shares = [],
  ) {
    if (tokens.length !== shown.length || tokens.some((token, i) => token !== shown[i])) {
      shown = tokens;
      buttons = tokens.map((_, place) => el("button", { type: "button", class: "token", data: { place, rove: "" } }));
      fill(line, ...buttons.flatMap((button, i) => (tokens[i].includes("\n") ? [button, el("br")] : [button])));
      setStop(buttons, 0);
    }
    buttons.forEach((button, place) => {
      const mark = marks.get(place);
      const share = shares[place] ?? 0;
      button.className = mark ? `token marked ${mark.kind}` : "token";
      button.style.setProperty("--share", String(Math.min(1, share)));
      button.title = `token ${place}${mark ? `: ${mark.told}` : ""}`;
      button.setAttribute("aria-label", `token ${place}: ${visible(tokens[place])}${mark ? `, ${mark.told}` : ""}`);
      button.dataset.sign = mark?.sign ?? "";
      button.textContent = visible(tokens[place]);
    });
  }

  return { element, show };
}
