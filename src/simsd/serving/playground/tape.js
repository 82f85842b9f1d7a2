// What a stream brings, with the time at which each part came: it can be shown as it comes, or more slowly.

export class Tape {
  /** Reads `chunks` to their end at once, whoever looks at them when. */
  constructor(chunks) {
    this._begin = performance.now();
    this._parts = [];
    this._wake = () => {};
    this._over = false;
    this.whole = this._read(chunks); // settles when all is read; throws what the stream throws
    this.whole.catch(() => {}); // `play` throws it too
  }

  /** Calls show(chunk, milliseconds after the beginning) for each part, `slowness` times as late as it came. */
  async play(slowness, signal, show) {
    const begin = performance.now();
    const first = this._over ? begin : this._begin; // a tape that is still read plays along with its making
    for (let index = 0; ; index += 1) {
      while (index === this._parts.length && !this._over) await new Promise((resolve) => (this._wake = resolve));
      if (index === this._parts.length) break;
      const { chunk, at } = this._parts[index];
      await until(first + slowness * at, signal);
      show(chunk, at);
    }
    await this.whole;
  }

  async _read(chunks) {
    try {
      for await (const chunk of chunks) {
        this._parts.push({ chunk, at: performance.now() - this._begin });
        this._wake();
      }
    } finally {
      this._over = true;
      this._wake();
    }
  }
}

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
