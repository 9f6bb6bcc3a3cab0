// Elements, and the kinds that every view has. Text is only ever set as text: nothing here reads markup.

/**
 * @typedef {Record<string, any>} Properties
 * `class`, `text`, `data` (a record), `on` (listeners by event), `style` (a record); anything else is an attribute.
 * @typedef {Node|string|null|undefined} Child
 */

/**
 * An element with its properties and children.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  dress(made, properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/**
 * An element of a drawing.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Node} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  dress(made, properties);
  made.append(...children);
  return made;
}

/** Put properties on an element. @type {(made: HTMLElement|SVGElement, properties: Properties) => void} */
function dress(made, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.setAttribute("class", value);
    else if (name === "text") made.textContent = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Make these the only children. @type {(place: Element, ...children: Child[]) => void} */
export function fill(place, ...children) {
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** A button that looks like a link, or as `properties` say.
 *  @type {(text: string, click: () => void, properties?: Properties) => HTMLButtonElement} */
export function button(text, click, properties = {}) {
  return el("button", { type: "button", class: "link", text, on: { click }, ...properties });
}

/** @type {(value: string|number, text: string) => HTMLOptionElement} */
export function option(value, text) {
  return el("option", { value, text });
}

/** A list to choose from. @type {(told: string, options: [string|number, string][], properties?: Properties) => HTMLSelectElement} */
export function select(told, options, properties = {}) {
  return el("select", { "aria-label": told, ...properties }, ...options.map(([value, text]) => option(value, text)));
}

/**
 * Radio buttons of which one is on: each is given with its label.
 * @type {(name: string, options: string[][], changed?: (value: string) => void) => {radio: HTMLInputElement, element: HTMLElement, value: string}[]}
 */
export function radios(name, options, changed = () => {}) {
  return options.map(([value, text, title], i) => {
    const radio = el("input", { type: "radio", name, value, id: `${name}-${value}`, checked: i === 0 });
    radio.addEventListener("change", () => changed(value));
    return { radio, value, element: el("label", { class: "choice", for: radio.id, title }, radio, ` ${text}`) };
  });
}

/** A text in small letters. @type {(text: string) => HTMLElement} */
export function hint(text) {
  return el("p", { class: "hint", text });
}

/**
 * A table.
 * @param {string[]} names
 * @param {(string|Node|(string|Node|null)[])[][]} rows
 * @param {{words?: string[], best?: (i: number) => boolean|null, label?: string}} [how] `words`: columns of sentences, which begin at
 *   the left; `best`: rows that stand out; `label`: what it is, where it may be wider or higher than its place
 */
export function tableOf(names, rows, how = {}) {
  const kind = (/** @type {number} */ i) => (how.words?.includes(names[i]) ? "words" : "");
  const place = how.label ? { tabindex: "0", role: "region", "aria-label": how.label } : {};
  return el("div", { class: "scroll", ...place }, el("table", {},
    el("thead", {}, el("tr", {}, ...names.map((text, i) => el("th", { scope: "col", class: kind(i), text })))),
    el("tbody", {}, ...rows.map((row, at) => el("tr", { class: how.best?.(at) ? "best" : "" },
      ...row.map((cell, i) => el("td", { class: kind(i) }, ...(Array.isArray(cell) ? cell : [cell]))))))));
}
