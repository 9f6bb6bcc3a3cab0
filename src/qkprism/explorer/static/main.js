// The page: opening, the two views, and one line that says what is going on.

import { el, fill } from "./dom.js";
import { headsView } from "./heads.js";
import { ask, mailed } from "./source.js";
import { go, onState } from "./state.js";
import { whyView } from "./why.js";

const VIEWS = [["why", "Why this token"], ["heads", "Heads"]];
const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

const status = {
  busy(/** @type {string} */ sentence) {
    say(sentence, "busy");
  },
  done() {
    say("", "");
  },
  fail(/** @type {string} */ sentence) {
    say(sentence, "problem");
  },
};

/**
 * @param {string} sentence
 * @param {string} kind
 */
function say(sentence, kind) {
  place("status").className = kind;
  place("main").setAttribute("aria-busy", String(kind === "busy"));
  fill(place("status"), sentence);
}

/**
 * Wait until the model is open; say how far it is.
 * @returns {Promise<import("./source.js").Start>}
 */
async function opened() {
  for (;;) {
    const start = await ask("start");
    if (start.stage === "ready") return start;
    if (start.stage === "failed") throw new Error(start.failure);
    const step = start.step ? ` ${start.step.done} of ${start.step.total} ${start.step.unit}.` : "";
    status.busy(start.stage === "surveying"
      ? `Surveying this model once, to know what its heads do on plain text; it is kept for later.${step}`
      : "Loading the model …");
    await new Promise((wake) => setTimeout(wake, 400));
  }
}

/** @param {import("./source.js").Start} start */
function open(start) {
  document.documentElement.style.setProperty("--query", start.palette.query);
  fill(place("model"), el("b", { text: start.model ?? "" }), el("span", { text: ` atlas: ${start.atlas ?? "none"}` }));
  place("model").title = (start.runs ?? []).join("\n");
  const tabs = mailed ? [] : VIEWS.map(([view, text]) =>
    el("button", { type: "button", data: { view }, text, on: { click: () => go({ view }) } }));
  fill(place("tabs"), ...tabs);
  const why = whyView(status);
  const heads = mailed ? null : headsView(status, start.palette);
  fill(place("main"), why.element, ...(heads ? [heads.element] : []));
  status.done();
  onState((state) => {
    const view = state.view === "heads" && heads ? heads : why;
    why.element.hidden = view !== why;
    if (heads) heads.element.hidden = view !== heads;
    for (const tab of tabs) {
      if (tab.dataset.view === state.view) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = ["qkprism", state.head, state.text.slice(0, 40)].filter(Boolean).join(" · ");
    view.look(state);
  });
}

place("skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("main").focus();
});
opened().then(open).catch((error) => status.fail(error.message));
