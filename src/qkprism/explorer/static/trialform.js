// Run a contrast: how much, where it is saved, how far it is, and what was found.

/** @import { Job, Tried } from "./source.js" */
import { button, el, fill, hint, tableOf } from "./dom.js";
import { percent, sureness } from "./letters.js";
import { headLink } from "./links.js";
import { ask } from "./source.js";
import { status } from "./status.js";

const PAUSE = 500; // milliseconds between questions for how far it is

/** @param {() => object} draft */
export function trialForm(draft) {
  const top = el("input", { type: "number", id: "trial-top", value: 4, min: 0, max: 40 });
  const n = el("input", { type: "number", id: "trial-n", value: 128, min: 8, max: 2000 });
  const place = el("input", { id: "trial-place", size: "24", spellcheck: "false" });
  const drawn = el("span", { class: "controls" }, el("label", { for: "trial-n", text: "prompts drawn" }), n);
  const run = el("button", { type: "submit", class: "primary", text: "Run it" });
  const cancel = button("Cancel", () => ask("cancel", { job }).then(show, status.fail), { class: "plain" });
  const bar = el("progress", { max: "1", value: "0", "aria-label": "How far it is" });
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
      await follow(begun);
    } catch (error) {
      status.fail(error);
    }
  });

  /** Ask again and again until it is over. */
  async function follow(/** @type {Job} */ now) {
    while (now.job === job && isBusy(now)) {
      show(now);
      await new Promise((wake) => setTimeout(wake, PAUSE));
      now = await ask("job", { job: now.job });
    }
    if (now.job === job) show(now);
  }

  function show(/** @type {Job} */ now) {
    [progress.hidden, run.disabled] = [!isBusy(now), isBusy(now)];
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

/** @param {Job} job */
function isBusy(job) {
  return job.state === "waiting" || job.state === "running";
}

/** @param {Tried} result */
function triedAnswer(result) {
  const best = result.heads[0];
  return [
    el("p", { class: "computed", text: `${best.head} attends most to a positive key in ${percent(best.accuracy)} of ${result.n} prompts ` +
      `(chance ${percent(result.chance)}, q ${sureness(best.q)}).` }),
    hint(`Saved in ${result.place}; it is open in this page as ${result.run}.`),
    tableOf(["head", "accuracy", "q", "logit gap"], result.heads.map((row) =>
      [headLink(row.head), percent(row.accuracy), sureness(row.q), (row.logit_gap ?? 0).toFixed(2)])),
    ...(result.features ? [el("h3", { text: "Features" }),
      tableOf(["contrast", "head", "rank", "evidence"],
        result.features.map((row) => [row.contrast, headLink(row.head), String(row.rank), row.evidence]), { words: ["evidence"] })] : []),
    ...(result.notes?.length ? [el("ul", { class: "listed" }, ...result.notes.map((text) => el("li", { text })))] : []),
  ];
}
