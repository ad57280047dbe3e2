// The sign-in: a token is exchanged for a session. The token itself is not kept.

import { h, setText } from "./dom.js";
import { session } from "./api.js";

export function signIn(root, { notice, done }) {
  const message = h("p", { class: "notice", id: "sign-in-message", role: "alert" }, notice ?? "");
  const input = h("input", {
    id: "token", name: "token", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": "sign-in-help sign-in-message",
  });
  const button = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h("form", {
    async onsubmit(event) {
      event.preventDefault();
      button.disabled = true;
      setText(message, "");
      try {
        const who = await session.begin(input.value);
        input.value = "";
        done(who);
      } catch (error) {
        setText(message, error.status === 401
          ? "This token is not accepted: it is wrong, has expired, or was deleted."
          : `The sign-in failed: ${error.message}`);
        button.disabled = false;
        input.focus();
      }
    },
  },
  h("label", { for: "token" }, "API token"),
  input,
  h("p", { class: "help", id: "sign-in-help" }, "Make one with ", h("code", null, "causeway token create --role viewer --ttl 8h"), ". The role admin can also revoke and drain gateways."),
  message,
  button);
  root.replaceChildren(h("section", { class: "sign-in" }, h("h1", null, "Causeway console"), form));
  input.focus();
  return { update() {}, destroy() {} };
}
