// Which edit: a head, what of it (a part of the logit, or features of a run), and how.

/** @import { Edits } from "./source.js" */
/** @import { State } from "./state.js" */
import { el, fill, hint, option, radios } from "./dom.js";
import { sureness } from "./letters.js";
import { go } from "./state.js";

const KINDS = [
  ["swap", "swap", "exchange it between the two keys"],
  ["conditional", "swap conditionally", "exchange it, in each key as strong as it is at that key's place"],
  ["ablate", "ablate", "give the first key no more of it than the mean token has"],
  ["steer", "steer", "move the first key towards the second, or away from it"],
];
const PART = "part:";
const RUN = "run:";

/**
 * @typedef {{head: string, part: string|null, run: string|null, features: string[], kind: string, amount: number,
 *   together: boolean}} EditChoice
 */

export function editForm() {
  const head = el("input", { id: "edit-head", size: "8", spellcheck: "false", "aria-label": "Head" });
  const what = el("select", { id: "edit-what" });
  const meaning = hint("");
  const features = el("div", { class: "features", role: "group", "aria-label": "Features" });
  const kinds = radios("edit", KINDS, (kind) => go({ kind }));
  const amount = el("input", { type: "range", min: "-2", max: "3", step: "0.1", id: "edit-amount", "aria-describedby": "edit-amount-hint" });
  const shown = el("output", { class: "amount" });
  const done = hint("");
  const lacking = el("p", { class: "hint", id: "edit-lacking" });
  const slider = el("div", { class: "slider" }, el("label", { for: "edit-amount", text: "by" }), amount, shown,
    el("p", { class: "hint", id: "edit-amount-hint", text: "1: the first key has what the second has. 0: nothing. Below 0: away from it." }));
  const together = el("input", { type: "checkbox", id: "edit-together" });
  const several = el("span", {});
  const all = el("label", { class: "choice", for: "edit-together" }, together, several);
  const element = el("div", { class: "edit-form" },
    el("div", { class: "controls" }, el("label", { for: "edit-head", text: "In head" }), head, el("label", { for: "edit-what", text: "edit" }), what),
    meaning, features, el("div", { class: "controls", role: "radiogroup", "aria-label": "How" }, ...kinds.map((kind) => kind.element)), done, lacking, slider, all);

  head.addEventListener("change", () => go({ head: head.value.trim().toUpperCase(), key: null, target: null }));
  what.addEventListener("change", () => {
    const isRun = what.value.startsWith(RUN);
    const name = what.value.slice(isRun ? RUN.length : PART.length);
    go(isRun ? { run: name, part: null, features: null } : { part: name, run: null, features: null, together: null });
  });
  features.addEventListener("change", () => {
    const chosen = /** @type {HTMLInputElement[]} */ ([...features.querySelectorAll("input:checked")]).map((box) => box.value);
    go({ features: chosen.join("\n") || null });
  });
  together.addEventListener("change", () => go({ together: together.checked ? "yes" : null }));
  let waiting = 0;
  amount.addEventListener("input", () => {
    fill(shown, Number(amount.value).toFixed(1));
    clearTimeout(waiting);
    waiting = setTimeout(() => go({ amount: amount.value }, { replace: true }), 200);
  });

  /** Show what can be edited, and give what is chosen of it. @type {(edits: Edits, state: State) => EditChoice} */
  function show(edits, state) {
    const set = edits.sets.find((one) => one.run === state.run) ?? (state.part ? undefined : edits.sets[0]);
    const part = set ? null : edits.parts.find((one) => one.name === state.part) ?? edits.parts[0];
    const names = set ? set.features.map((one) => one.name) : [];
    const wanted = (state.features ?? "").split("\n").filter((name) => names.includes(name));
    const chosen = wanted.length ? wanted : names;
    const why = set ? set.lacking : "a part of a logit has no conditional exchange; choose features of a run.";
    const [kind, text, told] = KINDS.find(([kind]) => kind === state.kind && !(kind === "conditional" && why)) ?? KINDS[0];
    const far = Number(state.amount ?? 1);
    head.value = edits.head;
    fill(what, ...groups(edits));
    what.value = set ? RUN + set.run : PART + part?.name;
    fill(meaning, part?.meaning ?? "Tick the features that are edited together. p: how often null data holds as well on held-out examples.");
    fill(features, ...(set ? set.features.map((one) => featureBox(one, chosen.includes(one.name))) : []));
    for (const { radio, value } of kinds) {
      radio.checked = value === kind;
      radio.disabled = value === "conditional" && Boolean(why);
    }
    fill(done, `To ${text}: ${told}.`);
    fill(lacking, why ? `Not to swap conditionally: ${why}` : "");
    slider.hidden = kind !== "steer";
    amount.value = String(Number.isFinite(far) ? far : 1);
    fill(shown, Number(amount.value).toFixed(1));
    all.hidden = !set || set.heads.length < 2;
    together.checked = state.together === "yes" && !all.hidden;
    fill(several, ` in all ${set?.heads.length ?? 1} heads of this run at once: ${set?.heads.join(", ") ?? ""}`);
    return { head: edits.head, part: part?.name ?? null, run: set?.run ?? null, features: chosen, kind,
      amount: Number(amount.value), together: together.checked };
  }

  return { element, show };
}

/** @param {Edits} edits */
function groups(edits) {
  const runs = edits.sets.map((one) => option(RUN + one.run, one.run));
  const parts = edits.parts.map((one) => option(PART + one.name, one.name));
  return [runs.length ? el("optgroup", { label: "features of a run" }, ...runs) : null, el("optgroup", { label: "a part of the logit" }, ...parts)];
}

/** @type {(feature: {name: string, rank: number, p: number|null}, checked: boolean) => HTMLElement} */
function featureBox({ name, rank, p }, checked) {
  const sure = p === null ? "not tested" : `p ${sureness(p)}`;
  return el("label", { class: "choice" }, el("input", { type: "checkbox", value: name, checked }), ` ${name} `, el("span", { class: "hint", text: `rank ${rank}, ${sure}` }));
}
