// Asks the server, with the token that a person typed. It is kept for this tab alone, until it is forgotten.

const TOKEN = "loomrl.token";
const WAIT_MS = 5_000;

// The server answered and refused; the message is its own sentence.
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;
export const useToken = (token) => sessionStorage.setItem(TOKEN, token);
export const forgetToken = () => sessionStorage.removeItem(TOKEN);

export async function ask(method, path, document, waitMs = WAIT_MS) {
  const headers = hasToken() ? { Authorization: `Bearer ${sessionStorage.getItem(TOKEN)}` } : {};
  if (document !== undefined) headers["Content-Type"] = "application/json";
  const body = document === undefined ? undefined : JSON.stringify(document);
  const answer = await fetch(path, { method, headers, body, cache: "no-store", signal: AbortSignal.timeout(waitMs) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, told.error ?? `the server answered ${answer.status}`);
  return told;
}
