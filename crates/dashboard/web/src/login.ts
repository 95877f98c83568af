// Who looks: asked for when the process wants to know. The password stays in this page's memory and goes
// with each call; a page that is loaded again asks again.

import { explain, type Api, brief } from "./api.js";
import { h, setShown, setText } from "./dom.js";

export interface Credentials {
  user: string;
  password: string;
}

/** The header that says so (RFC 7617, with UTF-8). */
export function authorization({ user, password }: Credentials): string {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
}

/** Who is logged in. */
export class Session {
  private credentials: Credentials | null = null;

  /** The header of a call; none before somebody has logged in. */
  header(): string | null {
    return this.credentials && authorization(this.credentials);
  }

  /** Asks until the process knows who looks. Nothing can be shown without, so there is no way around it. */
  async logIn(api: Api): Promise<void> {
    const user = h("input", { id: "login-user", name: "user", required: true, autocomplete: "username", spellcheck: "false" });
    const password = h("input", { id: "login-password", name: "password", type: "password", autocomplete: "current-password" });
    const submit = h("button", { type: "submit", class: "primary" }, "Log in");
    const failure = h("p", { class: "failure", role: "alert", hidden: true });
    const field = (label: string, input: HTMLElement) =>
      h("p", { class: "field" }, h("label", { for: input.id }, label), input);
    await new Promise<void>((resolve) => {
      const attempt = async (event: Event) => {
        event.preventDefault();
        submit.disabled = true;
        setShown(failure, false);
        this.credentials = { user: user.value, password: password.value };
        try {
          await api.admin.status({}, brief);
          dialog.remove();
          resolve();
        } catch (error) {
          this.credentials = null;
          setText(failure, explain(error));
          setShown(failure, true);
          submit.disabled = false;
          password.value = "";
          password.focus();
        }
      };
      const dialog = h(
        "dialog",
        // Escape would leave an empty page.
        { "aria-labelledby": "login-title", cancel: (event) => event.preventDefault() },
        h(
          "form",
          { submit: (event) => void attempt(event) },
          h("h2", { id: "login-title" }, "Log in"),
          h("p", {}, "This port asks who you are: a user of its users file."),
          field("User", user),
          field("Password", password),
          failure,
          h("div", { class: "buttons" }, submit),
        ),
      );
      // Browsers let a second Escape pass all the same.
      dialog.addEventListener("close", () => dialog.isConnected && dialog.showModal());
      document.body.append(dialog);
      dialog.showModal();
      user.focus();
    });
  }
}
