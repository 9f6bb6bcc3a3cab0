// Colours of a scale, and letters that can be read on them.

/**
 * The colour at a place of a scale.
 * @param {string[]} scale hexadecimal colours
 * @param {number} share from 0 to 1
 * @returns {[number, number, number]}
 */
export function onScale(scale, share) {
  const place = Math.min(1, Math.max(0, share)) * (scale.length - 1);
  const low = Math.min(scale.length - 2, Math.floor(place));
  const [a, b] = [rgb(scale[low]), rgb(scale[low + 1])];
  const mix = (/** @type {number} */ i) => Math.round(a[i] + (b[i] - a[i]) * (place - low));
  return [mix(0), mix(1), mix(2)];
}

/**
 * @param {string} hex
 * @returns {[number, number, number]}
 */
export function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/**
 * Black or white, whichever is read better on a colour.
 * @param {[number, number, number]} color
 */
export function inkOn(color) {
  const [r, g, b] = color.map((one) => (one / 255 <= 0.04045 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}
