// Run a contrast: how much, where it is saved, how far it is, and what was found.

import { el, fill } from "./dom.js";
import { headLink } from "./headlink.js";
import { percent, sureness } from "./letters.js";
import { ask } from "./source.js";
import { tableOf } from "./table.js";

const PAUSE = 500; // milliseconds between questions for how far it is

/**
 * @param {{fail: (sentence: string) => void, done: () => void}} status
 * @param {() => object} draft
 */
export function trialForm(status, draft) {
  const top = number("trial-top", 4, 0, 40);
  const n = number("trial-n", 128, 8, 2000);
  const place = /** @type {HTMLInputElement} */ (el("input", { id: "trial-place", size: "24", spellcheck: "false" }));
  const drawn = el("span", { class: "controls" }, el("label", { for: "trial-n", text: "prompts drawn" }), n);
  const run = /** @type {HTMLButtonElement} */ (el("button", { type: "submit", class: "primary", text: "Run it" }));
  const cancel = /** @type {HTMLButtonElement} */ (el("button", { type: "button", class: "plain", text: "Cancel", hidden: true }));
  const bar = /** @type {HTMLProgressElement} */ (el("progress", { max: "1", value: "0", "aria-label": "How far it is" }));
  const said = el("p", { class: "hint", role: "status" });
  const progress = el("div", { class: "controls", hidden: true }, bar, cancel);
  const found = el("div", {});
  const form = el("form", {},
    el("div", { class: "controls" }, drawn, el("label", { for: "trial-top", text: "decompose in the best" }), top, el("span", { text: "heads (0: only find heads)" })),
    el("div", { class: "controls spaced" }, el("label", { for: "trial-place", text: "save in" }), place, run));
  const element = el("div", {}, el("h2", { text: "Run it" }), form, progress, said, found);
  let job = "";
  let named = "";

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    fill(found);
    try {
      const begun = await ask("try", { ...draft(), place: place.value, n: Number(n.value), top: Number(top.value) });
      status.done();
      job = begun.job;
      follow(begun);
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  });
  cancel.addEventListener("click", () => ask("cancel", { job }).then(show, (error) => status.fail(error.message)));

  /** Ask again and again until it is over. */
  async function follow(/** @type {import("./source.js").Job} */ now) {
    try {
      while (now.job === job && (now.state === "waiting" || now.state === "running")) {
        show(now);
        await new Promise((wake) => setTimeout(wake, PAUSE));
        now = await ask("job", { job: now.job });
      }
      if (now.job === job) show(now);
    } catch (error) {
      status.fail(/** @type {Error} */ (error).message);
    }
  }

  function show(/** @type {import("./source.js").Job} */ now) {
    const busy = now.state === "waiting" || now.state === "running";
    [progress.hidden, cancel.hidden, run.disabled] = [!busy, !busy, busy];
    const { step } = now;
    bar.value = step?.total ? step.done / step.total : 0;
    const far = step?.total ? `: ${step.done} of ${step.total} ${step.unit}` : "";
    fill(said, now.state === "failed" ? now.failure ?? "" : now.state === "cancelled" ? "Cancelled; nothing was saved." :
      now.state === "done" ? "" : now.state === "waiting" ? "Waiting for the model …" : `${now.part || "Running"}${far}`);
    said.className = now.state === "failed" ? "problem" : "hint";
    if (now.state === "done" && now.result) fill(found, ...triedAnswer(now.result));
  }

  return {
    element,
    /** Suggest a folder by the name of the contrast, unless another was written. */
    named(/** @type {string} */ name, /** @type {boolean} */ isTemplate) {
      if (place.value === "" || place.value === `runs/${named}`) place.value = `runs/${name}`;
      named = name;
      drawn.hidden = !isTemplate;
    },
  };
}

/** @param {import("./source.js").Tried} result */
function triedAnswer(result) {
  const best = result.heads[0];
  const sentence = `${best.head} attends most to a positive key in ${percent(best.accuracy)} of ${result.n} prompts ` +
    `(chance ${percent(result.chance)}, q ${sureness(best.q)}).`;
  return [
    el("p", { class: "computed", text: sentence }),
    el("p", { class: "hint", text: `Saved in ${result.place}; it is open in this page as ${result.run}.` }),
    tableOf(["head", "accuracy", "q", "logit gap"], result.heads.map((row) =>
      [headLink(row.head), percent(row.accuracy), sureness(row.q), (row.logit_gap ?? 0).toFixed(2)])),
    ...(result.features ? [el("h3", { text: "Features" }),
      tableOf(["contrast", "head", "rank", "evidence"],
        result.features.map((row) => [row.contrast, headLink(row.head), String(row.rank), row.evidence]), { words: ["evidence"] })] : []),
    ...(result.notes?.length ? [el("ul", { class: "listed" }, ...result.notes.map((text) => el("li", { text })))] : []),
  ];
}

/**
 * @param {string} id
 * @param {number} value
 * @param {number} min
 * @param {number} max
 */
function number(id, value, min, max) {
  return /** @type {HTMLInputElement} */ (el("input", { type: "number", id, value, min, max }));
}
