// An answer on the page: text that is settled, the cells of the blocks under decoding, and the figures.

import { VERDICTS } from "./answer.js";
import { button, cellText, decimal, make, oncePerFrame, percent } from "./dom.js";

const ENDS = { stop: "", length: "ended at the most tokens asked for", stopped: "stopped", error: "" };
const REVEAL = 250; // milliseconds in which the places of a round appear, one after the other

export class AnswerView {
  /** openRounds(answer, index) shows a round. drawn(): called whenever the view has changed. */
  constructor(answer, openRounds, drawn = () => {}) {
    this._answer = answer;
    this._openRounds = openRounds;
    this._shown = { pieces: 0, rounds: 0 };
    this._text = make("span", "settled");
    this._cells = make("span", "cells");
    this._cells.setAttribute("aria-hidden", "true"); // what is not settled is for the eye; the end is announced
    this._figures = make("dl", "figures");
    this._note = make("p", "note");
    this._error = make("p", "error");
    this._error.setAttribute("role", "alert");
    this._look = button("Look at its rounds", "link", () => openRounds(answer, 0));
    this._look.hidden = true;
    this._body = make("p", "answer", this._text, this._cells);
    this._body.addEventListener("click", (event) => this._clicked(event));
    this.node = make("div", "answer-box", this._body, this._error, this._note, this._figures, this._look);
    this.update = oncePerFrame(() => {
      this._update();
      drawn();
    });
    this._update();
  }

  _update() {
    const answer = this._answer;
    const newest = answer.rounds.length - 1;
    for (const piece of answer.pieces.slice(this._shown.pieces)) this._text.append(pieceNode(piece, newest));
    if (this._shown.rounds !== answer.rounds.length || answer.ended) {
      this._cells.replaceChildren(...answer.cells.map((cell) => inOrder(cellNode(cell), cell.order)));
    }
    this._shown = { pieces: answer.pieces.length, rounds: answer.rounds.length };
    this.node.classList.toggle("waiting", !answer.ended && answer.rounds.length === 0);
    this._error.textContent = answer.error ?? "";
    this._body.hidden = Boolean(answer.error) && !answer.text; // no empty line above it
    this._note.textContent = answer.ended ? ENDS[answer.ended] : answer.rounds.length ? "" : "waiting for the server …";
    if (answer.rounds.length) this._figures.replaceChildren(...figureNodes(answer));
    this._look.hidden = !answer.ended || answer.rounds.length === 0;
  }

  _clicked(event) {
    const round = event.target.dataset?.round;
    if (round !== undefined && String(getSelection()) === "") this._openRounds(this._answer, Number(round));
  }
}

/** Lets a node appear when its turn in the round comes. */
function inOrder(node, order) {
  if (order !== null) {
    node.classList.add("fresh");
    node.style.animationDelay = `${Math.round(order * REVEAL)}ms`;
    node.addEventListener("animationend", () => node.classList.remove("fresh")); // else it comes anew with its tab
  }
  return node;
}

function pieceNode({ text, verdict, round, order }, newest) {
  const node = inOrder(make("span", verdict && `token ${verdict}`, text), round === newest ? order : null);
  if (round !== null) {
    node.dataset.round = round;
    node.title = `${VERDICTS[verdict].meaning}, in round ${round + 1}`;
  }
  return node;
}

/** A place of a block: its sign, and its token where there is one. */
export function cellNode({ verdict, token }) {
  const known = VERDICTS[verdict] ?? { sign: "", meaning: "known before" };
  const text = make("span", "cell-text", token === null ? "" : cellText(token));
  const node = make("span", `cell ${verdict}`, make("span", "sign", known.sign), text);
  node.title = known.meaning;
  return node;
}

function figureNodes(answer) {
  const { tokens, forwards, seconds, perSecond, perForward, acceptance } = answer.figures;
  const figures = [
    ["tokens/s", decimal(perSecond, 0), `${tokens} tokens in ${decimal(seconds, 2)} s, as this browser saw them`],
    ["forwards", forwards, "passes of the large model"],
    ["tokens a forward", decimal(perForward, 2), "what speculation raises"],
    ["accepted", percent(acceptance), "of the drafted tokens"],
    ["seconds", decimal(seconds, 2), "from the question to the newest token"],
  ];
  return figures.map(([name, value, title]) => {
    const node = make("div", "", make("dt", "", name), make("dd", "", value));
    node.title = title;
    return node;
  });
}
