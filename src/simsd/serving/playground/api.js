// The server, as the page sees it: the model's card, and the chunks of a chat.

import { sentence } from "./dom.js";

const MISSING = "This server asks for a key. Whoever runs it can give you one.";
const WRONG = "This key is not the server's; look for a slip, or ask whoever runs it.";

/** A failure in one sentence. */
export class ApiError extends Error {}

export class Api {
  /** askForKey(reason) resolves to a key, or to null where there is none. key: the one known so far. */
  constructor(askForKey, key = "") {
    this._askForKey = askForKey;
    this._key = key;
  }

  /** The card of the server's model. Throws ApiError. */
  async model() {
    const response = await this._fetch("v1/models", {});
    return (await response.json()).data[0];
  }

  /** The chunks of a streamed chat, as they come. Throws ApiError; AbortError where the signal stops it. */
  async *chat(body, signal) {
    const response = await this._fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...body, stream: true }),
      signal,
    });
    for await (const data of eventData(reading(response.body))) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(sentence(chunk.error.message));
      yield chunk;
    }
    throw new ApiError("The connection ended before the answer did.");
  }

  /** A response that is fine. Where a key is missing it is asked for, and the request sent again. */
  async _fetch(path, options) {
    for (;;) {
      const headers = { ...options.headers, ...(this._key && { authorization: `Bearer ${this._key}` }) };
      const response = await reach(path, { ...options, headers });
      if (response.ok) return response;
      if (response.status !== 401) throw await failure(response);
      const key = await this._askForKey(this._key ? WRONG : MISSING);
      if (key === null) throw new ApiError("This server answers only with its key.");
      this._key = key;
    }
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached; is it still running?");
  }
}

async function failure(response) {
  const told = await response.json().catch(() => ({}));
  return new ApiError(sentence(told.error?.message ?? `the server answered with status ${response.status}`));
}

/** The parts of a body, as they arrive. */
async function* reading(body) {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection to the server broke.");
  } finally {
    reader.cancel().catch(() => {}); // of a stream that has failed already
  }
}

/** The data of server-sent events in a sequence of bytes, cut anywhere. */
export async function* eventData(parts) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const part of parts) {
    const lines = (rest + decoder.decode(part, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
  }
}
