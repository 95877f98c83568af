// Which member of the cluster the page is about. The address says so after its `#`, and a header of each call does to
// whoever gets it, who sends the call on.

/** In a request: the member that it is for. In an answer: the one that it is of. */
export const MEMBER_HEADER = "fonn-member";

const PREFIX = "#member=";
/** What members may be called (`fonn-node --node-id`). */
const NAME = /^[A-Za-z0-9._-]{1,64}$/;

/** Where a member is shown. */
export function memberHref(name: string): string {
  return `${PREFIX}${name}`;
}

/** Where whoever answers is shown. */
export const ANYBODY_HREF = "#";

/** The member that the part of an address from `#` on names; `current` if it is the name of a part of the page. */
export function memberOf(hash: string, current: string | null): string | null {
  if (hash === "" || hash === ANYBODY_HREF) return null;
  if (!hash.startsWith(PREFIX)) return current;
  const name = hash.slice(PREFIX.length);
  return NAME.test(name) ? name : null;
}

/** As a value of that header: the process that serves the page, whatever the page is about. */
export const HERE = "";
