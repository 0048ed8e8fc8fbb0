// Ask the service. A failed question is an error, never an empty answer.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

/** Between two attempts to load what failed, in milliseconds. */
export const AGAIN = 5_000;

/** True if a later attempt may succeed: other answers (401, 404) are no fault of the service's. */
export const isPassing = ({ status }) => !status || status === 429 || status >= 500;

/** Get `/api/v1/<path>`; parameters that are empty are left out. */
export function get(path, parameters = {}, signal = undefined) {
  const asked = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const query = asked.size ? `?${asked}` : "";
  return answered(`${path}${query}`, { signal, headers: { Accept: "application/json" } });
}

/** Post an object. */
export const post = (path, body) => answered(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

/** The address to sign in at, and to come back from to here. */
export const signIn = () => `/login?${new URLSearchParams({ next: location.pathname + location.search })}`;

async function answered(path, options) {
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The service does not answer.");
  }
  if (response.status === 401) location.assign(signIn());
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Refused(response.status, told.error ?? `The service answered ${response.status}.`);
  }
  return response.json();
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");
