// What can be taken away: tables as CSV, drawings as SVG and PNG, lines of Python by the clipboard.

import { el } from "./dom.js";

const STYLES = ["fill", "stroke", "stroke-width", "opacity", "font", "font-size", "font-family", "font-weight"];

/**
 * Save a text as a file.
 * @param {string} name
 * @param {string} kind
 * @param {string} text
 */
export function saveText(name, kind, text) {
  saveLink(name, `data:${kind};charset=utf-8,${encodeURIComponent(text)}`);
}

/**
 * @param {string} name
 * @param {string} address
 */
function saveLink(name, address) {
  const link = el("a", { href: address, download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
}

/**
 * Two buttons that save a drawing.
 * @param {SVGElement} picture
 * @param {() => string} name
 */
export function saveButtons(picture, name) {
  const button = (/** @type {string} */ text, /** @type {() => void} */ click) =>
    el("button", { type: "button", class: "link", text, on: { click } });
  return el("p", { class: "saves" },
    button("Save as SVG", () => saveText(`${name()}.svg`, "image/svg+xml", alone(picture))),
    button("Save as PNG", () => savePng(`${name()}.png`, picture)));
}

/**
 * A drawing that needs no style sheet.
 * @param {SVGElement} picture
 */
function alone(picture) {
  const copy = /** @type {SVGElement} */ (picture.cloneNode(true));
  const [from, to] = [[picture, ...picture.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) /** @type {SVGElement} */ (to[i]).style.setProperty(name, style.getPropertyValue(name));
  });
  const { width, height } = picture.getBoundingClientRect();
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.style.setProperty("background", getComputedStyle(document.body).backgroundColor);
  return new XMLSerializer().serializeToString(copy);
}

/**
 * @param {string} name
 * @param {SVGElement} picture
 */
function savePng(name, picture) {
  const { width, height } = picture.getBoundingClientRect();
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    saveLink(name, canvas.toDataURL("image/png"));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(alone(picture))}`;
}

/**
 * Lines of Python with a button that copies them.
 * @param {string} code
 */
export function copied(code) {
  const button = el("button", { type: "button", class: "plain", text: "Copy" });
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(code);
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return el("div", { class: "code" }, el("pre", { tabindex: "0" }, el("code", { text: code })), button);
}
