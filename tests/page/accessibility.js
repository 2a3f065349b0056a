/* What a reader's machine needs of a page, as a list of complaints. Loaded into the page by test_accessible.py. */

const seen = (element) => element.checkVisibility({ checkOpacity: false, checkVisibilityCSS: true }) && !element.closest("[hidden]");
const told = (element) => `<${element.tagName.toLowerCase()} id="${element.id}" class="${element.getAttribute("class") ?? ""}"> ${element.textContent.trim().slice(0, 40)}`;
const textOf = (ids) => (ids ?? "").split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();

function nameOf(element) {
  const label = element.labels?.[0]?.textContent;
  const own = element.matches("input, textarea, select") ? "" : element.textContent;
  const inside = element.querySelector?.("img[alt]")?.alt;
  return [element.getAttribute("aria-label"), textOf(element.getAttribute("aria-labelledby")), label, own, inside, element.title].find((text) => text?.trim())?.trim() ?? "";
}

const reachable = () => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")].filter(seen);

function names() {
  return reachable().filter((element) => !nameOf(element)).map((element) => `no name: ${told(element)}`);
}

function references() {
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  const twice = ids.filter((id, index) => ids.indexOf(id) !== index).map((id) => `id twice: ${id}`);
  const attributes = ["aria-labelledby", "aria-describedby", "aria-controls", "aria-activedescendant", "for"];
  const lost = attributes.flatMap((name) => [...document.querySelectorAll(`[${name}]`)].flatMap((element) => element.getAttribute(name).split(/\s+/).filter((id) => !document.getElementById(id)).map((id) => `${name} leads nowhere: ${id}`)));
  return [...twice, ...lost];
}

function structure() {
  const found = [];
  for (const landmark of ["main", "body > header", "nav", "footer"]) if (document.querySelectorAll(landmark).length !== 1) found.push(`not one ${landmark}`);
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(seen).map((heading) => Number(heading.tagName[1]));
  if (levels.filter((level) => level === 1).length !== 1) found.push("not one h1");
  levels.slice(1).forEach((level, index) => level > levels[index] + 1 && found.push(`h${levels[index]} is followed by h${level}`));
  if (!document.documentElement.lang) found.push("no language");
  for (const image of document.querySelectorAll("img:not([alt])")) found.push(`no alt: ${image.src}`);
  for (const svg of document.querySelectorAll("svg")) if (!svg.getAttribute("aria-hidden") && !svg.getAttribute("role")) found.push(`a drawing without a role: ${told(svg.parentElement)}`);
  for (const header of document.querySelectorAll("th")) if (!header.scope) found.push(`a heading without a scope: ${told(header)}`);
  return found;
}

const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

function rgba(colour) {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}

const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
const light = (part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);

function contrast(one, two) {
  const [high, low] = [luminance(one), luminance(two)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}

function ground(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    const colour = rgba(getComputedStyle(at).backgroundColor);
    if (colour[3] > 0) layers.push(colour);
    if (colour[3] === 1) break;
  }
  return layers.reduceRight((below, layer) => over(layer, below), [255, 255, 255, 1]);
}

function texts() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const elements = new Set();
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (node.data.trim()) elements.add(node.parentElement);
  const exempt = "svg *, :disabled, [aria-disabled='true'], .unseen, .skip, noscript, script, textarea, dialog:not([open]) *";
  return [...elements].filter((element) => seen(element) && !element.matches(exempt)).flatMap((element) => {
    const below = ground(element);
    const found = contrast(over(rgba(getComputedStyle(element).color), below), below);
    return found < 4.5 ? [`contrast ${found.toFixed(2)}: ${told(element)}`] : [];
  });
}

function targets() {
  return reachable().filter((element) => element.matches("button, [role=button], input, select")).flatMap((element) => {
    const { width, height } = element.getBoundingClientRect();
    return Math.min(width, height) < 24 ? [`smaller than 24 px (${width.toFixed(0)} by ${height.toFixed(0)}): ${told(element)}`] : [];
  });
}

globalThis.complaints = () => [...names(), ...references(), ...structure(), ...texts(), ...targets()];

/** The contrast of two of the page's variables. */
globalThis.contrastOf = (front, back) => {
  const probe = document.body.appendChild(document.createElement("i"));
  const read = (name) => {
    probe.style.color = `var(${name})`;
    return rgba(getComputedStyle(probe).color);
  };
  const found = contrast(read(front), read(back));
  probe.remove();
  return found;
};

/** Where the focus is: its place in the document, and whether it shows. */
globalThis.focusNow = () => {
  const element = document.activeElement;
  if (element === document.body) return null;
  const boxes = [element, element.querySelector?.(".halo"), element.closest(".code"), element.closest("label")].filter(Boolean);
  const shows = boxes.some((box) => {
    const style = getComputedStyle(box);
    return (style.outlineStyle !== "none" && Number.parseFloat(style.outlineWidth) > 0) || (box.matches(".halo") && style.stroke !== "none");
  });
  return { place: [...document.querySelectorAll("*")].indexOf(element), shows, told: told(element) };
};
