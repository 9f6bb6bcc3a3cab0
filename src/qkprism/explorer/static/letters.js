// How a token is shown: as itself, but for characters that one cannot see or that move others about.

const NAMES = new Map([["\n", "⏎"], ["\r", "␍"], ["\t", "⇥"], ["\u00a0", "⍽"]]);
// controls, invisible and direction-changing characters, lone surrogates, private use, tags
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\u00a0\u2028\u2029\u115f\u3164]/gu;

/** A token that can be read: hidden characters by their sign or number. @param {string} token */
export function visible(token) {
  if (token === "") return "∅";
  return token.replace(HIDDEN, (letter) => {
    const code = /** @type {number} */ (letter.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0");
    return NAMES.get(letter) ?? `⟨U+${code}⟩`;
  });
}

/** A token between quotes, for sentences and lists; spaces at its ends are seen there. @param {string} token */
export function quoted(token) {
  return `“${visible(token)}”`;
}

/** A number with its sign. @param {number} value */
export function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

/** How many of something: 1 prompt, 2 prompts. @type {(count: number, noun: string) => string} */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** A share in per cent. @type {(share: number|null|undefined, digits?: number) => string} */
export function percent(share, digits = 0) {
  return share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;
}

/** A p or q value after its letter. @param {number|null} value */
export function sureness(value) {
  return value === null ? "not known" : value < 0.001 ? "< 0.001" : value.toFixed(3);
}
