// One question on its way: the request, the tape of what comes back, and the answer that grows from it.

import { Tape } from "./tape.js";

/** The tape of an answer. body: the request. */
export const record = (api, body, signal) => new Tape(api.chat(body, signal));

/** Plays a tape into an answer; changed() is called for each part, and at the end. Failures end in the answer. */
export async function follow(tape, answer, { pace, since = tape.began, signal }, changed) {
  try {
    await tape.play(pace, since, signal, (chunk, at) => {
      answer.take(chunk, at);
      changed();
    });
    answer.end("stop");
  } catch (error) {
    if (error.name === "AbortError") answer.end("stopped");
    else answer.end("error", error.message);
  }
  changed();
}
