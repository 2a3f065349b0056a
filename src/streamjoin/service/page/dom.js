/* Elements from data. Text is only ever set as text: nothing that the service sends is parsed as markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** Set the text only where it differs, so that selections and live regions are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function attribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

/** Make the children of `parent` those of `items`, in order; an item keeps its element, and with it the focus. */
export function reconcile(parent, items, key, create, update) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set(items.map((item) => String(key(item))));
  const old = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key) && !old.has(child.dataset.key)) old.set(child.dataset.key, child);
    else child.remove();
  }
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let child = old.get(name);
    old.delete(name);
    if (!child) {
      child = create(item);
      child.dataset.key = name;
    }
    update?.(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  // An element that is moved loses the focus.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

let clearing;

/** Tell a screen reader, once. */
export function announce(text) {
  const region = byId("announcer");
  say(region, text);
  clearTimeout(clearing);
  clearing = setTimeout(() => say(region, ""), 6000);
}

export const skeleton = () =>
  h("div", { class: "skeleton", role: "status" }, h("span"), h("span"), h("span"), h("b", { class: "unseen" }, "Loading"));

export const empty = (title, text, ...more) =>
  h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, text), ...more);
