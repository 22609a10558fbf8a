// Data of the page: routes, requests, the run's version, and how numbers are written.
// An export joins these files into one script, so imports stand on one line and top-level names are unique.

const { useEffect, useState } = htmPreact;

// -- routes ---------------------------------------------------------------------------------------

/** Encode a segment. Lone surrogates, which model output may contain, cannot be encoded. */
function encodeSegment(text) {
  return encodeURIComponent(String(text).toWellFormed());
}

function decodeSegment(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

/** Return the segments and the query of a hash, such as `#/task/0/rollout/train-0?agent=a`. */
export function parseRoute(hash) {
  const text = hash.replace(/^#\/?/, "");
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  const query = new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1));
  return { path: path.split("/").filter(Boolean).map(decodeSegment), query };
}

/** Return the hash of a screen. Empty values of the query are left out. */
export function linkTo(segments, query = {}) {
  const pairs = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const search = new URLSearchParams(pairs.map(([name, value]) => [name, String(value).toWellFormed()])).toString();
  return "#/" + segments.map(encodeSegment).join("/") + (search ? `?${search}` : "");
}

/** Change the query of the current route without a new entry in the history. */
export function replaceQuery(changes) {
  const { path, query } = parseRoute(location.hash);
  history.replaceState(null, "", linkTo(path, { ...Object.fromEntries(query), ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Return a value that is read again after each event of a name. */
function useEvent(name, read) {
  const [value, setValue] = useState(read);
  useEffect(() => {
    const update = () => setValue(read);
    addEventListener(name, update);
    update();
    return () => removeEventListener(name, update);
  }, []);
  return value;
}

export const useRoute = () => parseRoute(useEvent("hashchange", () => location.hash));

// -- requests -------------------------------------------------------------------------------------

/** Return one text for equal requests, whatever the order of their parameters. */
function requestKey(name, params) {
  const pairs = Object.entries(params).filter(([, value]) => value != null && value !== "");
  return JSON.stringify([name, pairs.map(([key, value]) => [key, String(value)]).sort()]);
}

/** Answers inside an export, by request. */
const embedded = new Map(
  [...document.querySelectorAll("script[data-key]")].map((script) => [requestKey(...JSON.parse(script.dataset.key)), script]),
);
export const isExport = embedded.size > 0;
export const isAvailable = (name, params) => !isExport || embedded.has(requestKey(name, params));

const CACHED_ANSWERS = 40;
const answers = new Map();
/** State of the run: a number that grows with each change, whether the server answers, and whether the run goes on. */
let live = { version: 0, isReachable: true, isRunning: false };
export const useLive = () => useEvent("live", () => live);
let quietUntil = 0;

async function fetchAnswer(key) {
  if (embedded.has(key)) return JSON.parse(embedded.get(key).textContent);
  if (isExport) throw new Error("This export does not contain these data. Open the run with coterie view.");
  const [name, pairs] = JSON.parse(key);
  const response = await fetch(`api/${name}?${new URLSearchParams(pairs.map(([key, value]) => [key, value.toWellFormed()]))}`);
  const answer = await response.json().catch(() => null);
  if (!response.ok) throw new Error(answer ? [answer.error, answer.fix].filter(Boolean).join(": ") : `The server answered with status ${response.status}.`);
  return answer;
}

/** Return the address of an image for `src`, or null if an export lacks it. */
export function imageAddress(hash) {
  if (!isExport) return `image/${encodeSegment(hash)}`;
  const script = embedded.get(requestKey("image", { hash }));
  return script ? JSON.parse(script.textContent) : null;
}

/** Return the answer of a request for a version of the run, from memory if it was loaded before. */
function loadAnswer(key, version) {
  const cached = answers.get(key);
  if (cached?.version === version) return cached.promise;
  // Until the new answer is there, the last one is shown.
  const start = performance.now();
  const entry = { version, data: cached?.data, promise: fetchAnswer(key).then((data) => (entry.data = data)) };
  // Large runs that go on are reloaded less often.
  entry.promise.then(() => (quietUntil = Math.max(quietUntil, 6 * performance.now() - 5 * start)), () => answers.get(key) === entry && answers.delete(key));
  answers.delete(key);
  answers.set(key, entry);
  if (answers.size > CACHED_ANSWERS) answers.delete(answers.keys().next().value);
  return entry.promise;
}

/** Return `{data}`, `{error}` or, while the first answer loads, `{}`. Reloads when the run changes. */
export function useData(name, params = {}) {
  const [state, setState] = useState({});
  const { version } = useLive();
  const key = name && requestKey(name, params);
  useEffect(() => {
    if (!key) return undefined;
    let isCurrent = true;
    const store = (change) => isCurrent && setState({ key, ...change });
    loadAnswer(key, version).then((data) => store({ data }), (error) => store({ error: error.message }));
    return () => void (isCurrent = false);
  }, [key, version]);
  if (state.key === key) return state;
  return { data: answers.get(key)?.data };
}

/** Ask every two seconds whether the run has changed, while the page is visible. */
export function pollVersion() {
  if (isExport) return;
  let last;
  const ask = async () => {
    if (document.visibilityState !== "visible" || performance.now() < quietUntil) return;
    try {
      const { version, running } = await fetchAnswer(requestKey("version", {}));
      const hasChanged = last !== undefined && version !== last;
      last = version;
      setLive({ version: live.version + hasChanged, isReachable: true, isRunning: running });
    } catch {
      setLive({ ...live, isReachable: false });
    }
  };
  setInterval(ask, 2000);
  ask();
}

function setLive(change) {
  if (Object.entries(change).every(([name, value]) => live[name] === value)) return;
  live = change;
  dispatchEvent(new Event("live"));
}

// -- numbers --------------------------------------------------------------------------------------

/** Formats by number of digits. `toLocaleString` makes a new one for each number, which takes ten times as long. */
const FORMATS = Array.from({ length: 7 }, (_, digits) => new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));

/** Write a number with a fixed number of digits, or `–` for a missing one. */
export function formatNumber(value, digits = 3) {
  if (value == null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -digits) return value.toExponential(1).replace("-", value < 0 ? "−" : "-");
  if (Math.abs(value) >= 1000) digits = 0;
  const places = Number.isInteger(value) && digits <= 3 && Math.abs(value) >= 10 ? 0 : digits;
  return (value < 0 ? "−" : "") + FORMATS[places].format(Math.abs(value));
}

export const formatCount = (value) => (value == null ? "–" : FORMATS[0].format(value));
export const formatSigned = (value, digits = 3) => (value > 0 ? "+" : "") + formatNumber(value, digits);

export function formatSeconds(seconds) {
  if (seconds == null) return "–";
  if (seconds < 60) return `${formatNumber(seconds, 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Control characters, direction marks and lone surrogates, which would hide or reorder what is shown. */
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Replace characters that would hide or reorder what is shown. Lengths stay the same. */
export function showInvisible(text) {
  return String(text ?? "").replace(INVISIBLE, "\ufffd");
}
