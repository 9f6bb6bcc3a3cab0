// What a page that was mailed cannot do: what it needs, and the command that gives it.

import { el } from "./dom.js";
import { copied } from "./saving.js";

/**
 * @param {string} what
 * @param {import("./source.js").Start} start
 * @param {{done: () => void}} status
 */
export function liveView(what, start, status) {
  const runs = (start.found ?? []).map((one) => one.run).join(" ");
  const element = el("section", { class: "card", "aria-label": "Needs the model" },
    el("h2", { text: `${what}: that needs the model` }),
    el("p", { text: "This page holds its data and asks nobody. The same page with the model behind it answers for any text; " +
      "give it the folder that the run is in:" }),
    copied(`qkprism explore ${runs} --model ${start.loads_as ?? ""}`.replace(/ +/g, " ")));
  return { element, look: () => status.done() };
}
