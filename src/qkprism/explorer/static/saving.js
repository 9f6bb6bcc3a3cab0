// What can be taken away: tables as CSV, drawings as SVG and PNG, lines of Python by the clipboard.

import { button, el } from "./dom.js";

const STYLES = ["fill", "stroke", "stroke-width", "opacity", "font", "font-size", "font-family", "font-weight"];

/** Save a text as a file. @type {(name: string, kind: string, text: string) => void} */
export function saveText(name, kind, text) {
  saveLink(name, `data:${kind};charset=utf-8,${encodeURIComponent(text)}`);
}

/** @type {(name: string, address: string) => void} */
function saveLink(name, address) {
  const link = el("a", { href: address, download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(link);
  link.click();
  link.remove();
}

/**
 * Rows as CSV. A cell that a spreadsheet would take for a formula gets an apostrophe in front.
 * @type {(names: string[], rows: (string|number|boolean|null)[][]) => string}
 */
export function csvOf(names, rows) {
  const cell = (/** @type {string|number|boolean|null} */ value) => {
    const text = value === null ? "" : String(value);
    const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [names, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Two buttons that save a drawing. @type {(picture: SVGElement, name: () => string) => HTMLElement} */
export function saveButtons(picture, name) {
  return el("p", { class: "saves" },
    button("Save as SVG", () => saveText(`${name()}.svg`, "image/svg+xml", alone(picture))),
    button("Save as PNG", () => savePng(`${name()}.png`, picture)));
}

/** A drawing that needs no style sheet. @param {SVGElement} picture */
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

/** @type {(name: string, picture: SVGElement) => void} */
function savePng(name, picture) {
  const { width, height } = picture.getBoundingClientRect();
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = el("canvas", { width: Math.round(2 * width), height: Math.round(2 * height) });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    saveLink(name, canvas.toDataURL("image/png"));
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(alone(picture))}`;
}

/** Lines of Python, or a command, with a button that copies them. @param {string} code */
export function copied(code) {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(code);
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  }, { class: "plain" });
  return el("div", { class: "code" }, el("pre", { tabindex: "0" }, el("code", { text: code })), copy);
}
