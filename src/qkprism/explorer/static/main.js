// The page: opening, the views, and one line that says what is going on.

import { contrastView } from "./contrast.js";
import { el, fill } from "./dom.js";
import { headsView } from "./heads.js";
import { liveView } from "./live.js";
import { pinButton } from "./pins.js";
import { runView } from "./run.js";
import { answers, ask, mailed } from "./source.js";
import { startView } from "./start.js";
import { VIEWS, go, onState } from "./state.js";
import { whatIfView } from "./whatif.js";
import { whyView } from "./why.js";

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
  const atlas = start.atlas ? el("span", { text: ` atlas: ${start.atlas}` }) : null;
  fill(place("model"), el("b", { text: start.model ?? "" }), atlas);
  place("model").title = (start.found ?? []).map((one) => `${one.run}: ${one.what}`).join("\n");
  const views = viewsOf(start);
  const tabs = views.size < 2 ? [] : [...views.keys()].map((view) =>
    el("button", { type: "button", data: { view }, text: VIEWS.get(view) ?? "", on: { click: () => go({ view }) } }));
  fill(place("tabs"), ...tabs, views.size < 2 ? null : pinButton());
  fill(place("main"), ...[...views.values()].map((view) => view.element));
  status.done();
  onState((state) => {
    const name = views.has(state.view) ? state.view : [...views.keys()][0];
    for (const [one, view] of views) view.element.hidden = one !== name;
    for (const tab of tabs) {
      if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = ["qkprism", state.head, state.text.slice(0, 40)].filter(Boolean).join(" · ");
    views.get(name)?.look(state);
  });
}

/**
 * The views by their names; a mailed page has those that it can answer.
 * @param {import("./source.js").Start} start
 * @returns {Map<string, {element: HTMLElement, look: (state: import("./state.js").State) => unknown}>}
 */
function viewsOf(start) {
  if (!answers("runs")) return new Map([["why", whyView(status)]]);
  if (!start.model) return new Map([["start", startView(status, start.palette)], ["run", runView(status, start)]]); // the toy
  const live = (/** @type {string} */ what) => liveView(what, start, status);
  return new Map([
    ["start", startView(status, start.palette)],
    ["why", answers("explain") ? whyView(status) : live("Why heads attend where they do in a prompt")],
    ["whatif", mailed ? live("What an edit does to attention and to the next token") : whatIfView(status)],
    ["heads", headsView(status, start.palette)],
    ["contrast", mailed ? live("A contrast of your own") : contrastView(status)],
    ["run", runView(status, start)],
  ]);
}

place("skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("main").focus();
});
opened().then(open).catch((error) => status.fail(error.message));
