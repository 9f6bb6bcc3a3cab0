// Where answers come from: the server that gave this page, or the data inside a page that was mailed.

/**
 * What is answered, by what is asked.
 * @typedef {{start: Start, explain: Explanation, row: Row, arcs: Links, edits: Edits, whatif: WhatIf, heads: Heads, head: HeadFacts,
 *   evidence: Evidence, seen: Cloud, runs: {runs: RunFacts[]}, table: TableFacts, figure: {figure: {data: any, layout: any}},
 *   shelf: {templates: {name: string, question: string, source: string}[]}, draft: Checked, mark: {line: string},
 *   try: Job, job: Job, cancel: Job}} Answers
 *
 * @typedef {{head: string, key: number, attention: number, decides: string, sentence: string, unnamed?: string[]}} Edge
 * @typedef {{tokens: string[], query: number, edges: Edge[], methods?: string[]}} Explanation
 * @typedef {{out: [number, number][][], into: [number, number][][]}} Links
 * @typedef {{name: string, color: string, meaning: string, values: (number|null)[]}} Part
 * @typedef {{head: string, query: number, attention: number[], logits: (number|null)[], parts: Part[],
 *   variation: Record<string, number>, sink: number, edges: Edge[]}} Row
 * @typedef {{scale: string[], missing: string, query: string, attention: string}} Palette
 * @typedef {string|{head: string}|{text: string, go: Partial<import("./state.js").State>}} Piece
 * @typedef {{what: string, paper: string, verdict: string, here: Piece[], rule: string}} Claim
 * @typedef {{run: string, what: string, sentences: Piece[][], notes: Piece[][], claims: Claim[], picture: string,
 *   prompts: {text: string, query: number, head: string|null}[]}} Found
 * @typedef {{stage: string, failure: string|null, palette: Palette, step?: {unit: string, done: number, total: number},
 *   model?: string, loads_as?: string, atlas?: string|null, sentences?: Piece[][], hint?: Piece[], found?: Found[]}} Start
 * @typedef {{name: string, caption: string, values: (number|null)[]}} Column
 * @typedef {{heads: [number, number][], columns: Column[]}} Heads
 * @typedef {{attention: number, distance: number, before: string, key: string, between: string, query: string}} Strong
 * @typedef {{contrast: string, question: string, accuracy: number, q: number, chance: number, best: boolean, texts: string}} Tested
 * @typedef {{head: string, parts: {name: string, meaning: string}[],
 *   sets: {run: string, features: {name: string, rank: number, p: number|null}[], heads: string[],
 *   lacking: string|null}[]}} Edits
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
 * @typedef {{name: string, folder: string, what: string, model: string, choices: [string, string][],
 *   tables: {name: string, caption: string}[], figures: string[]}} RunFacts
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
 *   effects: EffectFacts[], checks: CheckFacts[], varies: string}} FeatureFacts
 * @typedef {{run: string, name: string, effects: EffectFacts[], checks: CheckFacts[]}} EditedFacts
 * @typedef {{head: string, sentence: string, features: FeatureFacts[], edited: EditedFacts[], texts: Record<string, string[]>, umap: boolean, problems?: string[]}} Evidence
 * @typedef {{name: string, axes: string[], keys: (number|null)[][], queries: (number|null)[][]}} CloudView
 * @typedef {{example: number, margin: number|null}} SeenText
 * @typedef {{views: CloudView[], example: number[], positive: boolean[], places: number[], texts: string[][], n: number,
 *   labels: {name: string, keys: (string|null)[], queries: (string|null)[]}[], right: number|null, error: number|null,
 *   strongest: SeenText[], weakest: SeenText[], wrong: SeenText[]}} Cloud
 * @typedef {{head: string, strongest: Strong[], tested: Tested[]}} HeadFacts
 *
 * @typedef {{ask: string, with: Record<string, any>, answer: any}} Kept
 */

/** What this page holds in an element, as gzip in base64; null where there is none. @param {string} id */
export async function held(id) {
  const packed = document.getElementById(id)?.textContent;
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const inside = await held("data");
/** The questions with their answers that a mailed page holds. */
const kept = inside === null ? null : /** @type {Kept[]} */ (JSON.parse(inside).kept);
/** Whether this page holds its answers and has nobody to ask. */
export const mailed = kept !== null;

/** Whether this can be answered: all by a server, and by a page that was mailed what it holds. @param {keyof Answers} what */
export function answers(what) {
  return !kept || kept.some((one) => one.ask === what);
}

/**
 * Ask for an answer. An error is thrown as a sentence.
 * @template {keyof Answers} What
 * @param {What} what
 * @param {object} [question]
 * @param {AbortSignal} [signal] when it is aborted, the question's place in the queue is free
 * @returns {Promise<Answers[What]>}
 */
export async function ask(what, question, signal) {
  if (kept) return fromMail(kept, what, question ?? {});
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
 * The first answer that was kept for a question: each word that was kept is said, or the question does not say it.
 * @type {(all: Kept[], what: string, question: any) => any}
 */
function fromMail(all, what, question) {
  const said = (/** @type {any} */ value) => value !== null && value !== undefined && value !== "";
  const fits = (/** @type {Kept} */ one) =>
    one.ask === what && Object.entries(one.with).every(([word, value]) => !said(question[word]) || question[word] === value);
  const found = all.find(fits);
  if (found) return found.answer;
  const heads = new Set(all.filter((one) => one.ask === what && one.with.head).map((one) => one.with.head));
  throw new Error(heads.size && said(question.head) && !heads.has(question.head)
    ? `This page holds ${[...heads].join(", ")} alone. For any head: qkprism explore.`
    : "This page was written without the answer to that. With the model: qkprism explore.");
}
