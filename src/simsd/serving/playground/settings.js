// How requests are decoded, as the controls say; an empty control leaves it to the server.

import { get, make } from "./dom.js";

const METHODS = {
  none: "none: ordinary decoding",
  simsd: "simsd: the paper's method",
  exact: "exact: ordinary decoding's text",
  "exact-draft-order": "exact-draft-order: in the draft's order",
};

const SLOW_MOTION = "10"; // the embedded pair writes an answer within a blink

/** Fills a select with the methods. standard: the server's own, "" while it is not known, null where
 * it is not to be left to the server. */
export function fillMethods(select, standard) {
  const own = standard === null ? [] : [new Option(standard ? `the server's own: ${standard}` : "the server's own", "")];
  select.replaceChildren(...own, ...Object.entries(METHODS).map(([name, text]) => new Option(text, name)));
}

/** Sets the controls up for a model, whose card is that of the server. */
export function setUp(card) {
  const own = card.simsd;
  fillMethods(get("method"), own.method);
  get("schedule").options[0].text = `the server's own: ${own.remasking_strategy}`;
  for (const id of ["window", "window-left", "window-right"]) get(id).placeholder = String(own.num_speculative_tokens);
  get("temperature").placeholder = String(own.temperature);
  for (const side of ["", "-left", "-right"]) pair(get(`method${side}`), get(`window${side}`), own.method);
  get("remember").checked = !own.embedded;
  if (own.embedded) get("pace").value = SLOW_MOTION;
  get("model").replaceChildren(make("b", "", card.id), ` · blocks of ${own.block_length}`);
}

/** Ordinary decoding has no window. */
function pair(method, window, standard) {
  const fit = () => (window.disabled = (method.value || standard) === "none");
  method.addEventListener("change", fit);
  fit();
}

/** The pace of showing: 1 is as it comes, 10 is ten times slower. */
export const slowness = () => Number(get("pace").value);

export const remembers = () => get("remember").checked;

/** A request's fields; method and window: their controls. Says itself what is wrong, and is null then. */
export function fields(method = get("method"), window = get("window")) {
  const numbers = [window, get("temperature"), get("max-tokens"), get("seed")];
  if (!numbers.every((control) => control.reportValidity())) return null;
  const given = ({ value, disabled }) => (value === "" || disabled ? undefined : Number(value));
  return {
    temperature: given(get("temperature")),
    max_tokens: given(get("max-tokens")),
    seed: given(get("seed")),
    simsd: {
      method: method.value || undefined,
      num_speculative_tokens: given(window),
      remasking_strategy: get("schedule").value || undefined,
      stream_rounds: true,
      stream_layouts: true,
    },
  };
}

/** The fields in a few words. */
export function label({ simsd }, card) {
  const method = simsd.method ?? card.simsd.method;
  const window = simsd.num_speculative_tokens ?? card.simsd.num_speculative_tokens;
  return method === "none" ? "none" : `${method}, window ${window}`;
}
