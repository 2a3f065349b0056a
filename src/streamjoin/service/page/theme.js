/* Light or dark: what the system prefers, until the reader says otherwise. */

import { byId, s } from "./dom.js";

const KEY = "streamjoin.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
const PICTURES = {
  light: "M12 4V2m0 20v-2m8-8h2M2 12h2m13.66-5.66 1.41-1.41M4.93 19.07l1.41-1.41m11.32 0 1.41 1.41M4.93 4.93l1.41 1.41M16 12a4 4 0 1 1-8 0 4 4 0 0 1 8 0Z",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
};

const system = () => (dark.matches ? "dark" : "light");
const current = () => document.documentElement.dataset.theme ?? system();

function show() {
  const other = current() === "dark" ? "light" : "dark";
  const button = byId("theme");
  button.setAttribute("aria-label", `Use the ${other} theme`);
  button.title = `Use the ${other} theme`;
  button.replaceChildren(s("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" }, s("path", { d: PICTURES[other], fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linecap": "round", "stroke-linejoin": "round" })));
}

function choose(theme) {
  if (theme === system()) {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem(KEY);
  } else {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(KEY, theme);
  }
  show();
}

export function startTheme() {
  const kept = localStorage.getItem(KEY);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  byId("theme").addEventListener("click", () => choose(current() === "dark" ? "light" : "dark"));
  dark.addEventListener("change", show);
  show();
}
