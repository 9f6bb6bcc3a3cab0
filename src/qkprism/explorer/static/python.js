// The Python that makes each view, for what is looked at now.

/**
 * A text as Python writes it; JSON's quoting is Python's too.
 * @param {string} text
 */
function literal(text) {
  return JSON.stringify(text);
}

/**
 * @param {import("./state.js").State} state
 * @param {string} model
 * @param {string[]} runs folders
 * @returns {{title: string, code: string}[]}
 */
export function pythonOf(state, model, runs) {
  const head = literal(state.head ?? "L0H0");
  const text = literal(state.text || "The hat is in box O, the jam is in box Z. The jam is in box");
  const query = state.query === null ? "" : `, query=${state.query}`;
  const features = runs.length ? `, features=[${runs.map(literal).join(", ")}]` : "";
  const load = `import qkprism as qk\nmodel = qk.load(${literal(model)})`;
  const made = [
    { title: "Why this token", code: `${load}\nwhy = qk.explain(model, ${text}${query}${features}, head=${head})\nprint(why); why.plot()` },
    { title: "Heads", code: `${load}\natlas = qk.survey(model)\natlas.to_frame(); atlas.plot()` },
    { title: "Try a contrast", code: `${load}\ntask = qk.task("boxes", tokenizer=model.tokenizer)\nheads = qk.find_heads(model, task.search)\n` +
      "features = qk.decompose(model, task.contrasts, heads=heads.top(4))\nfeatures.save(\"runs/mine\")" },
  ];
  if (!runs.length) return made;
  const kind = state.kind === "ablate" ? `, edit=qk.Edit("ablate")` : "";
  return [...made, { title: "What if, over many texts", code: `${load}\nfeatures = qk.Features.load(${literal(runs[0])})\n` +
    `task = qk.task("boxes", tokenizer=model.tokenizer)\neffects = qk.intervene(model, task.test, features${kind}, outcome="logits")\neffects.to_frame(); effects.plot()` }];
}
