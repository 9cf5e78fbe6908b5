// Puts scripts for the backend into the requests of SDKs that send no fields of ours.

/** A `fetch` whose first request has the first script, and so on; the last is for all that follow. Null: none. */
export function scripted(...scripts) {
  return (url, { body, ...rest }) => {
    const script = scripts.length > 1 ? scripts.shift() : scripts[0];
    return fetch(url, { ...rest, body: JSON.stringify({ ...JSON.parse(body), script }) });
  };
}
