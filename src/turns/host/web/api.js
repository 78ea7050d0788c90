// Talking to the server.

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// What the server answers, null where it says nothing. With a body it is a POST.
export async function call(path, body) {
  let response;
  try {
    response = await fetch(path, body === undefined ? {} : {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, "The server can't be reached.");
  }
  const type = response.headers.get("Content-Type") || "";
  if (response.ok) return type.startsWith("application/json") ? response.json() : null;
  let detail = `The server answered ${response.status}.`;
  try {
    detail = (await response.json()).detail || detail;
  } catch { /* no problem JSON: the status has to do */ }
  throw new Refused(response.status, detail);
}
