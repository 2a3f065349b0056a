/* The prompt for a bearer token. It is kept for the tab only, and never written into the page. */

import { forgetToken, hasToken, keepToken } from "./api.js";
import { byId } from "./dom.js";

/** Resolves once there is a token to try. */
export function askForToken() {
  const dialog = byId("token-dialog");
  const problem = byId("token-problem");
  const input = byId("token");
  problem.hidden = !hasToken();
  problem.textContent = hasToken() ? "The service did not take this token." : "";
  input.setAttribute("aria-invalid", String(hasToken()));
  forgetToken();
  input.value = "";
  dialog.showModal();
  input.focus();
  return new Promise((resolve) => {
    dialog.oncancel = (event) => event.preventDefault();
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      if (!input.value.trim()) {
        input.focus();
        return;
      }
      keepToken(input.value.trim());
      input.value = "";
      dialog.close();
      resolve();
    };
  });
}
