// The rounds of one answer: what was drafted and kept in each, and who saw whom in its forward.

import { VERDICTS } from "./answer.js";
import { cellNode } from "./answer_view.js";
import { get, make } from "./dom.js";
import { MaskView } from "./mask.js";

export class Rounds {
  constructor() {
    this._answer = null;
    this._index = 0;
    this._mask = new MaskView(get("mask"), get("mask-cell"));
    get("round").addEventListener("input", () => this.go(Number(get("round").value)));
    get("previous").addEventListener("click", () => this.go(this._index - 1));
    get("next").addEventListener("click", () => this.go(this._index + 1));
    get("panel-rounds").addEventListener("keydown", (event) => this._key(event));
  }

  /** Shows an answer's round; the panel must be visible, since the picture is fitted into it. */
  show(answer, index) {
    this._answer = answer;
    get("rounds-empty").hidden = true;
    get("rounds-full").hidden = false;
    get("rounds-question").textContent = answer.question;
    get("rounds-label").textContent = answer.label;
    get("round").max = String(answer.rounds.length - 1);
    this.go(index);
  }

  go(index) {
    const { rounds } = this._answer;
    this._index = Math.max(0, Math.min(rounds.length - 1, index));
    const round = rounds[this._index];
    get("round").value = String(this._index);
    get("round-of").textContent = `round ${this._index + 1} of ${rounds.length}`;
    get("previous").disabled = this._index === 0;
    get("next").disabled = this._index === rounds.length - 1;
    get("round-told").textContent = told(round);
    get("blocks").replaceChildren(...blocks(round));
    get("forward-told").textContent = forwardTold(round.layout);
    get("mask-box").hidden = !round.layout.mask;
    if (round.layout.mask) this._mask.show(round.layout);
  }

  _key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !this._answer || event.target === get("round") || event.target === get("mask")) return;
    event.preventDefault();
    this.go(this._index + step);
  }
}

function told(round) {
  const count = (wanted) => round.places.filter((place) => place.verdict === wanted).length;
  const parts = Object.keys(VERDICTS).filter((verdict) => verdict !== "masked" && count(verdict));
  const finished = round.finished_blocks;
  const blocks = finished ? `; ${finished} block${finished > 1 ? "s" : ""} finished` : "";
  return (parts.map((verdict) => `${count(verdict)} ${verdict}`).join(", ") || "nothing revealed") + blocks;
}

function forwardTold({ rows, prefix_length: cached, mask }) {
  const said = `One forward of the large model computes ${rows} rows; each also sees the ${cached} cached tokens.`;
  return mask ? said : `${said} The mask of so many rows is not sent.`;
}

function blocks(round) {
  const size = round.block_length;
  const found = [];
  for (let first = 0; first < round.places.length; first += size) {
    const places = round.places.slice(first, first + size);
    const idle = places.every(({ verdict, drafted }) => verdict === "masked" && drafted === null);
    if (first === 0 || !idle) found.push(block(places, size));
  }
  return found;
}

/** A table of one block: positions across, what stood there before, what was drafted, what stands there now. */
function block(places, size) {
  const head = make("tr", "", make("td"), ...places.map(({ position }) => heading(position, "col")));
  const body = [
    row("before", places.map(({ before }) => shown(before === null ? "masked" : "known", before))),
    row("draft", places.map(draft)),
    row("after", places.map(({ verdict, after }) => shown(verdict, after))),
  ];
  const table = make("table", "block", make("thead", "", head), make("tbody", "", ...body));
  table.prepend(make("caption", "", `block ${places[0].position / size}`));
  return make("div", "scroll", table);
}

function heading(text, scope) {
  const node = make("th", "", text);
  node.scope = scope;
  return node;
}

const row = (name, cells) => make("tr", "", heading(name, "row"), ...cells.map((cell) => make("td", "", cell)));

function shown(verdict, token) {
  const node = cellNode({ verdict, token });
  if (token === null) node.append(make("span", "unseen", verdict === "rejected" ? "rejected, masked" : "masked"));
  else if (VERDICTS[verdict]) node.append(make("span", "unseen", verdict));
  return node;
}

function draft({ verdict, drafted, draft_step: step }) {
  if (drafted === null) return "";
  const lost = verdict === "rejected" || verdict === "corrected";
  const cell = cellNode({ verdict: lost ? "lost" : "known", token: drafted });
  return make("span", "drafted", cell, make("span", "step", `step ${step}`));
}
