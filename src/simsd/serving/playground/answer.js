// What is known of one answer while it grows: its rounds, its tokens with how they came, and its text.

const REVEALED = new Set(["accepted", "corrected", "bonus"]);
const BROKEN = "\ufffd"; // in the text of a token that is a part of a character

/** What each verdict is called and means; the sign tells it without colours. */
export const VERDICTS = {
  accepted: { sign: "✓", meaning: "draft kept" },
  corrected: { sign: "↻", meaning: "replaced by the large model" },
  bonus: { sign: "+", meaning: "revealed by the large model itself, behind the drafts that were kept" },
  rejected: { sign: "✗", meaning: "draft refused, masked again" },
  masked: { sign: "", meaning: "not yet revealed" },
};

export class Answer {
  /** question: as it was asked. label: how it is decoded, for people. */
  constructor(question, label) {
    this.question = question;
    this.label = label;
    this.text = "";
    this.rounds = [];
    this.pieces = []; // the text in parts {text, verdict, round, order}; verdict "" where it is not known
    this.drafted = this.accepted = 0;
    this.milliseconds = 0; // from the question to the newest chunk
    this.stats = null;
    this.ended = null; // "stop", "length", "stopped", or "error"
    this.error = null; // one sentence
    this._tokens = new Map(); // position -> {text, verdict, round, order}
    this._next = this._open = null; // the first token that is not yet among the pieces; the first place not yet text
    this._placed = 0; // characters of the text among the pieces
  }

  /** Takes in a chunk that came `at` milliseconds after the question. */
  take(chunk, at) {
    this.milliseconds = at;
    const told = chunk.simsd ?? {};
    if (told.round) this._takeRound(told.round);
    if (told.stats) this.stats = told.stats;
    for (const choice of chunk.choices) {
      this.text += choice.delta.content ?? "";
      if (choice.finish_reason) this.ended = choice.finish_reason;
    }
    this._place();
  }

  /** Nothing more comes. reason: "stopped" or "error", where the server has not given one. */
  end(reason, error = null) {
    this.ended ??= reason;
    this.error = error;
    this._place();
  }

  /** The cells of the blocks under decoding, {position, verdict, token, order}; none once the answer has ended. */
  get cells() {
    const round = this.rounds.at(-1);
    if (!round || this.ended) return [];
    const size = round.block_length;
    const open = round.places.filter((place) => place.position >= Math.max(this._open, this._first));
    const last = open.findLast((place) => place.verdict !== "masked")?.position ?? this._open;
    const end = last - (last % size) + size; // blocks that nothing was drafted into are left out
    return open.filter((place) => place.position < end).map((place) => this._cell(place, round));
  }

  /** Figures so far, or the server's own at the end; rates are null where they mean nothing. */
  get figures() {
    const stats = this.stats;
    const tokens = stats?.tokens ?? this._tokens.size;
    const forwards = stats?.target_forwards ?? this.rounds.length;
    const [accepted, drafted] = stats ? [stats.accepted_tokens, stats.drafted_tokens] : [this.accepted, this.drafted];
    return {
      tokens,
      forwards,
      seconds: this.milliseconds / 1000,
      perSecond: this.milliseconds ? (1000 * tokens) / this.milliseconds : 0,
      perForward: forwards ? tokens / forwards : 0,
      acceptance: drafted ? accepted / drafted : null,
      ownSeconds: stats && stats.prefill_seconds + stats.draft_seconds + stats.verify_seconds + stats.accept_seconds,
    };
  }

  _takeRound(round) {
    if (this._next === null) {
      const known = round.places.findIndex((place) => place.verdict !== "known"); // the end of the prompt
      this._first = this._next = round.block_start + Math.max(0, known);
    }
    for (const place of round.places) {
      const { position, verdict, after } = place;
      const order = orderIn(round, place);
      if (REVEALED.has(verdict)) this._tokens.set(position, { text: after, verdict, round: this.rounds.length, order });
      if (place.drafted !== null) this.drafted += 1;
      if (verdict === "accepted") this.accepted += 1;
    }
    this._open = round.block_start + round.finished_blocks * round.block_length;
    this.rounds.push(round);
  }

  _cell(place, round) {
    const { position, verdict } = place;
    const token = place.after ?? place.drafted;
    const came = verdict === "known" ? (this._tokens.get(position)?.verdict ?? "known") : verdict;
    return { position, verdict: came, token, order: orderIn(round, place) };
  }

  /** Finds the tokens in the text: what a token is called alone need not be what it is in a text. */
  _place() {
    while (this._placed < this.text.length) {
      const token = this._next !== null && this._next < this._open ? this._tokens.get(this._next) : undefined;
      const rest = this.text.slice(this._placed);
      const blanks = rest.length - rest.trimStart().length;
      if (token === undefined) return this._add(rest, { verdict: "", round: null, order: null });
      if (rest.startsWith(token.text)) this._add(token.text, token);
      else if (rest.startsWith(token.text, blanks)) this._add(rest.slice(0, blanks + token.text.length), token);
      else if (token.text.includes(BROKEN) && !this._addBroken(rest, token)) return;
      this._next += 1; // one that is no text, as the end of a turn, is passed over
    }
  }

  /** Characters made of several tokens: all up to the next whole token. False where that is not yet there. */
  _addBroken(rest, token) {
    let after = this._next + 1;
    while (this._tokens.get(after)?.text.includes(BROKEN)) after += 1;
    if (after >= this._open && !this.ended) return false;
    const end = after < this._open ? rest.indexOf(this._tokens.get(after).text) : -1;
    this._add(end < 0 ? rest : rest.slice(0, end), token);
    this._next = after - 1;
    return true;
  }

  _add(text, { verdict, round, order }) {
    if (text) this.pieces.push({ text, verdict, round, order });
    this._placed += text.length;
  }
}

/** When in its round a place was decided, from 0 to 1: the drafts in their order, then the rest. Null: it was not. */
function orderIn(round, { verdict, draft_step: step }) {
  if (verdict === "known" || verdict === "masked") return null;
  const last = Math.max(0, ...round.places.map((place) => place.draft_step ?? 0));
  return step === null ? 1 : (step - 1) / Math.max(1, last);
}
