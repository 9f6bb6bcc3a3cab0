// The page: opening, and the views, of which one is looked at.

/** @import { Start } from "./source.js" */
/** @import { State } from "./state.js" */
import { contrastView } from "./contrast.js";
import { el, fill } from "./dom.js";
import { headsView } from "./heads.js";
import { runView } from "./run.js";
import { copied } from "./saving.js";
import { answers, ask, mailed } from "./source.js";
import { pinButton, startView } from "./start.js";
import { VIEWS, go, onState } from "./state.js";
import { status, workplace } from "./status.js";
import { whatIfView } from "./whatif.js";
import { whyView } from "./why.js";

/** @typedef {{element: HTMLElement, wait: string, look: (state: State, signal: AbortSignal) => unknown}} View `wait`: what is said meanwhile */

const place = (/** @type {string} */ id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Wait until the model is open; say how far it is. */
async function opened() {
  for (;;) {
    const start = await ask("start");
    if (start.stage === "ready") return start;
    if (start.stage === "failed") throw new Error(start.failure ?? "");
    const step = start.step ? ` ${start.step.done} of ${start.step.total} ${start.step.unit}.` : "";
    status.busy(start.stage === "surveying"
      ? `Surveying this model once, to know what its heads do on plain text; it is kept for later.${step}`
      : "Loading the model …");
    await new Promise((wake) => setTimeout(wake, 400));
  }
}

/** @param {Start} start */
function open(start) {
  document.documentElement.style.setProperty("--query", start.palette.query);
  fill(place("model"), el("b", { text: start.model ?? "" }), start.atlas ? el("span", { text: ` atlas: ${start.atlas}` }) : null);
  place("model").title = (start.found ?? []).map((one) => `${one.run}: ${one.what}`).join("\n");
  const views = viewsOf(start);
  const tabs = views.size < 2 ? [] : [...views.keys()].map((view) =>
    el("button", { type: "button", data: { view }, text: VIEWS.get(view), on: { click: () => go({ view }) } }));
  fill(place("tabs"), ...tabs, views.size < 2 ? null : pinButton());
  fill(place("main"), ...[...views.values()].map((view) => view.element));
  status.done();
  const looking = workplace();
  onState((state) => {
    const name = views.has(state.view) ? state.view : [...views.keys()][0];
    for (const [one, { element }] of views) element.hidden = one !== name;
    for (const tab of tabs) {
      if (tab.dataset.view === name) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    document.title = ["qkprism", state.head, state.text.slice(0, 40)].filter(Boolean).join(" · ");
    const view = /** @type {View} */ (views.get(name));
    looking(view.wait, (signal) => view.look(state, signal));
  });
}

/** The views by their names; a mailed page has those that it can answer. @type {(start: Start) => Map<string, View>} */
function viewsOf(start) {
  if (!answers("runs")) return new Map([["why", whyView()]]);
  if (!start.model) return new Map([["start", startView(start.palette)], ["run", runView(start)]]); // the toy
  const live = (/** @type {string} */ what) => liveView(what, start);
  return new Map([
    ["start", startView(start.palette)],
    ["why", answers("explain") ? whyView() : live("Why heads attend where they do in a prompt")],
    ["whatif", mailed ? live("What an edit does to attention and to the next token") : whatIfView()],
    ["heads", headsView(start.palette)],
    ["contrast", mailed ? live("A contrast of your own") : contrastView()],
    ["run", runView(start)],
  ]);
}

/** What a page that was mailed cannot do: what it needs, and the command that gives it. @type {(what: string, start: Start) => View} */
function liveView(what, start) {
  const runs = (start.found ?? []).map((one) => one.run).join(" ");
  const element = el("section", { class: "card", "aria-label": "Needs the model" },
    el("h2", { text: `${what}: that needs the model` }),
    el("p", { text: "This page holds its data and asks nobody. The same page with the model behind it answers for any text; " +
      "give it the folder that the run is in:" }),
    copied(`qkprism explore ${runs} --model ${start.loads_as ?? ""}`.replace(/ +/g, " ")));
  return { element, wait: "", look: () => {} };
}

place("skip").addEventListener("click", (event) => {
  event.preventDefault();
  place("main").focus();
});
opened().then(open).catch(status.fail);
