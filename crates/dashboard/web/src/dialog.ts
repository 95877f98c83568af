// Questions before something is changed.

import { explain } from "./api.js";
import { h, setShown, setText } from "./dom.js";

export interface Question {
  title: string;
  /** What will happen. */
  text: string;
  /** What the button that does it says. */
  action: string;
  /** It cannot be undone. */
  dangerous?: boolean;
  /** More to fill in. */
  content?: HTMLElement;
  /** Does it; what it throws is shown, and the question stays open. */
  perform(): Promise<void>;
}

/** Asks; ends when the dialog is closed. Escape and Cancel do nothing. */
export function ask(question: Question): Promise<boolean> {
  const failure = h("p", { class: "failure", role: "alert", hidden: true });
  const perform = h(
    "button",
    { type: "submit", class: question.dangerous ? "danger" : "primary" },
    question.action,
  );
  const cancel = h("button", { type: "button", click: () => dialog.close() }, "Cancel");
  let done = false;
  const submit = async (event: Event) => {
    event.preventDefault();
    perform.disabled = true;
    setShown(failure, false);
    try {
      await question.perform();
      done = true;
      dialog.close();
    } catch (error) {
      setText(failure, explain(error));
      setShown(failure, true);
    } finally {
      perform.disabled = false;
    }
  };
  const dialog = h(
    "dialog",
    { "aria-labelledby": "question-title", "aria-describedby": "question-text" },
    h(
      "form",
      { submit: (event) => void submit(event) },
      h("h2", { id: "question-title" }, question.title),
      h("p", { id: "question-text" }, question.text),
      question.content ?? null,
      failure,
      h("div", { class: "buttons" }, cancel, perform),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  // What cannot be undone should not be one press of Enter away.
  (question.content?.querySelector<HTMLElement>("select, input") ?? cancel).focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(done);
    });
  });
}
