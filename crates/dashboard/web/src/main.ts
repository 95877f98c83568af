// The page in the browser: about whoever serves it, or about the member that the address names.

import { Session } from "./login.js";
import { memberHref, memberOf } from "./member.js";
import { show } from "./page.js";
import { applyTheme, theme } from "./theme.js";

function main(): void {
  applyTheme(theme());
  const session = new Session();
  let windowMs = 5 * 60_000;
  let member = memberOf(location.hash, null);
  let shown = new AbortController();
  const draw = () => show(session, member, windowMs, (chosen) => (windowMs = chosen), shown.signal);
  draw();
  addEventListener("hashchange", () => {
    const wanted = memberOf(location.hash, member);
    if (wanted === member) {
      // The browser has gone to a part of the page; loaded again, it is about the same member still.
      if (member !== null) history.replaceState(null, "", memberHref(member));
      return;
    }
    member = wanted;
    shown.abort();
    shown = new AbortController();
    draw();
    // As after a link to another page.
    scrollTo(0, 0);
    document.getElementById("main")?.focus();
  });
}

main();
