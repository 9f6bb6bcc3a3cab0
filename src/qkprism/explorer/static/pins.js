// Views that were pinned and named; this browser keeps them, and each is an address.

import { el, fill } from "./dom.js";
import { formatState, go, parseState, stateNow } from "./state.js";

const SHELF = "qkprism pins";
const MOST = 100;

/** @typedef {{name: string, hash: string}} Pin */

/** @returns {Pin[]} */
function pinsKept() {
  try {
    const found = JSON.parse(localStorage.getItem(SHELF) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one?.hash === "string") : [];
  } catch {
    return []; // a page without storage has no pins
  }
}

/** @param {Pin[]} pins */
function keepPins(pins) {
  try {
    localStorage.setItem(SHELF, JSON.stringify(pins.slice(-MOST)));
  } catch {
    // a page without storage has no pins
  }
  dispatchEvent(new Event("pinschange"));
}

/** A button that pins the view that is looked at under a name. */
export function pinButton() {
  const name = /** @type {HTMLInputElement} */ (el("input", { id: "pin-name", size: "14", placeholder: "Name this view", "aria-label": "Name this view" }));
  const form = el("form", { class: "pin-form" }, name, el("button", { type: "submit", class: "plain", text: "Pin" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const state = stateNow();
    const told = name.value.trim() || [state.view, state.head, state.text.slice(0, 30)].filter(Boolean).join(" · ");
    keepPins([...pinsKept().filter((pin) => pin.name !== told), { name: told, hash: formatState(state) }]);
    name.value = "";
  });
  return form;
}

/** The pinned views. */
export function pinList() {
  const list = el("ul", { class: "pins" });
  const element = el("section", { class: "card spaced", "aria-label": "Pinned views" }, el("h2", { text: "Pinned views" }), list);
  addEventListener("pinschange", show);

  function show() {
    const pins = pinsKept();
    element.hidden = !pins.length;
    fill(list, ...pins.map((pin) => el("li", {},
      el("button", { type: "button", class: "link", text: pin.name, on: { click: () => go(parseState(pin.hash)) } }),
      el("button", { type: "button", class: "plain", text: "Unpin", "aria-label": `Unpin ${pin.name}`,
        on: { click: () => keepPins(pinsKept().filter((one) => one.name !== pin.name)) } }))));
  }

  return { element, show };
}
