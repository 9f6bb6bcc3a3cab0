// Where answers come from: the server that gave this page, or the data inside a page that was mailed.

/**
 * @typedef {{head: string, key: number, attention: number, decides: string, sentence: string}} Edge
 * @typedef {{tokens: string[], query: number, edges: Edge[]}} Explanation
 * @typedef {{name: string, color: string, meaning: string, values: (number|null)[]}} Part
 * @typedef {{head: string, query: number, attention: number[], logits: (number|null)[], parts: Part[],
 *   variation: Record<string, number>, sink: number, edges: Edge[]}} Row
 * @typedef {{scale: string[], missing: string, query: string, attention: string}} Palette
 * @typedef {{stage: string, failure: string|null, palette: Palette, step?: {unit: string, done: number, total: number},
 *   model?: string, loads_as?: string, atlas?: string, runs?: string[], sentences?: (string|{head: string})[][]}} Start
 * @typedef {{name: string, caption: string, values: (number|null)[]}} Column
 * @typedef {{heads: [number, number][], columns: Column[]}} Heads
 * @typedef {{attention: number, distance: number, before: string, key: string, between: string, query: string}} Strong
 * @typedef {{contrast: string, question: string, accuracy: number, q: number, chance: number, best: boolean}} Tested
 * @typedef {{head: string, parts: {name: string, meaning: string}[],
 *   sets: {run: string, features: {name: string, rank: number, p: number|null}[], heads: string[]}[]}} Edits
 * @typedef {{token: string, key: string, before: number, after: number, permuted: number[]}} Said
 * @typedef {{head: string, query: number, original: number, target: number, draws: number, control: string, sentence: string,
 *   attention: {before: number[], after: number[], low: number[], high: number[], full: number[]|null},
 *   predictions: Said[], moved: {after: number, permuted: number[], full: number|null}|null}} WhatIf
 * @typedef {{predictor: string, auc: number|null, error: number|null, tells: boolean, n: number}} Balance
 * @typedef {{mistakes: {line: number, message: string}[], notes: string[], balance: Balance[], declared: string[], n: number,
 *   examples: {tokens: string[], marks: [number, string][], said: boolean}[]}} Checked
 * @typedef {{place: string, run: string, n: number, chance: number, notes?: string[],
 *   heads: {head: string, accuracy: number, q: number|null, logit_gap: number|null}[],
 *   features?: {contrast: string, head: string, rank: number, p: number|null, evidence: string}[]}} Tried
 * @typedef {{job: string, state: string, part: string, step: {unit: string, done: number, total: number}|null,
 *   failure: string|null, result: Tried|null}} Job
 * @typedef {{name: string, what: string, model: string, choices: [string, string][], tables: string[]}} RunFacts
 * @typedef {{names: string[], rows: (string|number|boolean|null)[][], n: number}} TableFacts
 * @typedef {{control: string, title: string, meaning: string, evidence: boolean, rival: boolean, gain: number|null, error: number|null,
 *   spread: number|null, draws: number, advantage: number|null, advantage_error: number|null, beaten: boolean|null}} EffectRow
 * @typedef {{source: string, did: string, compared: string, target: string, method: string, rank: number, n: number, rows: EffectRow[]}} EffectFacts
 * @typedef {{source: string, features: string, method: string, n: number, matters: boolean, sentence: string, true_part: number|null,
 *   true_part_error: number|null, part: number|null, relative_part_error: number|null, logit: number|null, tv_pair: number|null,
 *   tv: number|null}} CheckFacts
 * @typedef {{run: string, name: string, evidence: string, rank: number, ranks: Record<string, number|null>, q: number|null,
 *   gap: {total: number|null, error: number|null}|null, salience: number|null, n: number, threshold: number,
 *   strength: (number|null)[], null: (number|null)[], shuffled: (number|null)[], t: (number|null)[],
 *   effects: EffectFacts[], checks: CheckFacts[]}} FeatureFacts
 * @typedef {{head: string, sentence: string, features: FeatureFacts[], texts: Record<string, string[]>, umap: boolean}} Evidence
 * @typedef {{name: string, axes: string[], keys: (number|null)[][], queries: (number|null)[][]}} CloudView
 * @typedef {{example: number, margin: number|null}} SeenText
 * @typedef {{views: CloudView[], example: number[], positive: boolean[], places: number[], texts: string[][], n: number,
 *   labels: {name: string, keys: (string|null)[], queries: (string|null)[]}[], right: number|null, error: number|null,
 *   strongest: SeenText[], weakest: SeenText[], wrong: SeenText[]}} Cloud
 * @typedef {{head: string, strongest: Strong[], tested: Tested[]}} HeadFacts
 */

const inside = document.getElementById("data");
/** The data of a mailed page: an explanation and some of its rows. */
export const mailed = inside ? JSON.parse(inside.textContent ?? "") : null;

/**
 * Ask for an answer. An error is thrown as a sentence.
 * @param {string} what start, explain, row, heads or head
 * @param {object} [question]
 * @param {AbortSignal} [signal] when it is aborted, the question's place in the queue is free
 * @returns {Promise<any>}
 */
export async function ask(what, question, signal) {
  if (mailed) return fromMail(what, question ?? {});
  const post = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) };
  let answer;
  try {
    answer = await fetch(`api/${what}`, question ? { ...post, signal } : { signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not answer. Is qkprism explore still running?");
  }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? "The server could not answer.");
  return body;
}

/**
 * @param {string} what
 * @param {any} question
 */
function fromMail(what, question) {
  if (what === "start") return mailed.start;
  if (what === "explain") return mailed.explanation;
  const row = what === "row" && mailed.rows.find((/** @type {Row} */ one) => one.head === question.head);
  if (row) return row;
  throw new Error(`This page holds ${mailed.rows.map((/** @type {Row} */ one) => one.head).join(", ")} alone. ` +
    "For any head: qkprism explore.");
}
