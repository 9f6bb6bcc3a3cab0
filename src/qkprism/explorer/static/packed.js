// What a mailed page holds: texts as gzip in base64.

/**
 * The text of an element of this page, or null where there is none.
 * @param {string} id
 */
export async function held(id) {
  const packed = document.getElementById(id)?.textContent;
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
