// Requests to the server. Addresses are relative, so that the page works below any path of a proxy.

const token = new URLSearchParams(location.search).get("token") ?? "";
const LIMIT = 15000; // ms until a question is given up

/** The server's answer has said why there is none. */
export class Refused extends Error {}

export function address(path, parameters = {}) {
  const query = new URLSearchParams({ ...parameters, token });
  return `api/${path}?${query}`;
}

/** The answer as an object; Refused with the server's sentence, TypeError or AbortError where it is gone. */
export async function ask(path, parameters = {}, signal = undefined) {
  const limit = AbortSignal.timeout(LIMIT);
  const response = await fetch(address(path, parameters), {
    signal: signal && AbortSignal.any ? AbortSignal.any([signal, limit]) : signal ?? limit,
    cache: "no-store",
  });
  if (!response.ok) throw new Refused((await response.text()).trim() || `The server answers with ${response.status}.`);
  return response.json();
}
