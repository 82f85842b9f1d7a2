// What a stream brings, with the time at which each part came: it can be shown as it comes, or more slowly.

export class Tape {
  /** Reads `chunks` to their end at once, whoever looks at them when. */
  constructor(chunks) {
    this.began = performance.now();
    this._parts = [];
    this._wake = () => {};
    this._over = false;
    this.first = new Promise((resolve) => (this._first = resolve)); // when the first part came, or the end
    this.whole = this._read(chunks); // settles when all is read; throws what the stream throws
    this.whole.catch(() => {}); // `play` throws it too
  }

  /** Calls show(chunk, at) for each part that came `at` milliseconds after the beginning, pace(at) after `since`. */
  async play(pace, since, signal, show) {
    for (let index = 0; ; index += 1) {
      while (index === this._parts.length && !this._over) await new Promise((resolve) => (this._wake = resolve));
      if (index === this._parts.length) break;
      const { chunk, at } = this._parts[index];
      await until(since + pace(at), signal);
      show(chunk, at);
    }
    await this.whole;
  }

  async _read(chunks) {
    try {
      for await (const chunk of chunks) {
        const at = performance.now() - this.began;
        this._parts.push({ chunk, at });
        this._first(at);
        this._wake();
      }
    } finally {
      this._over = true;
      this._first(performance.now() - this.began);
      this._wake();
    }
  }
}

/** A pace `slowness` times slower than real from a time on; the wait before it is as long as it was. */
export const slower = (slowness, from) => (at) => (at <= from ? at : from + slowness * (at - from));

/** Waits for a time of `performance.now()`. Throws AbortError where the signal is first. */
async function until(time, signal) {
  signal.throwIfAborted();
  const left = time - performance.now();
  if (left <= 0) return;
  await new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, left);
    signal.addEventListener("abort", done);
  });
  signal.throwIfAborted();
}
