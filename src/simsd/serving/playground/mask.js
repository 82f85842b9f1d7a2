// The attention mask of one forward, as a picture: rows look, columns are looked at.

import { cellText, oncePerFrame } from "./dom.js";

const LARGEST = 18; // pixels of a cell
const SMALLEST = 3;
const LETTER = 11;
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

export class MaskView {
  /** told: the element that says in words what the cell under the pointer or the cursor means. */
  constructor(canvas, told) {
    this._canvas = canvas;
    this._told = told;
    this._layout = null;
    this._at = null; // [row, column]
    canvas.addEventListener("pointermove", (event) => this._point(event));
    canvas.addEventListener("pointerdown", (event) => this._point(event));
    canvas.addEventListener("keydown", (event) => this._key(event));
    new ResizeObserver(oncePerFrame(() => this._fit())).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._draw());
  }

  /** layout: that of a round, with its mask. */
  show(layout) {
    this._layout = layout;
    this._at = null;
    this._told.textContent = "Point at a cell, or go to the picture and use the arrow keys.";
    this._canvas.setAttribute("aria-label", `Attention mask of ${layout.rows} rows`);
    this._fit();
  }

  _fit() {
    const room = this._canvas.parentElement.clientWidth;
    if (!this._layout || !room) return;
    const { rows, labels } = this._layout;
    this._margin = 14 + 7 * Math.max(...labels.map((label) => label.length));
    this._cell = Math.max(SMALLEST, Math.min(LARGEST, Math.floor((room - this._margin - 2) / rows)));
    const side = this._margin + this._cell * rows + 2;
    const ratio = window.devicePixelRatio || 1;
    this._canvas.width = this._canvas.height = Math.round(side * ratio);
    this._canvas.style.width = this._canvas.style.height = `${side}px`;
    this._canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    this._draw();
  }

  _draw() {
    if (!this._layout || !this._cell) return;
    const style = getComputedStyle(this._canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const pen = this._canvas.getContext("2d");
    pen.clearRect(0, 0, this._canvas.width, this._canvas.height);
    this._drawCells(pen, colour);
    this._drawGroups(pen, colour);
    if (this._at) this._drawCursor(pen, colour);
  }

  _drawCells(pen, colour) {
    const { rows, mask, tokens } = this._layout;
    const [cell, margin] = [this._cell, this._margin];
    const inner = cell - (cell > 5 ? 1 : 0);
    const [hidden, token, slot] = [colour("--hidden"), colour("--sees"), colour("--sees-slot")];
    for (let row = 0; row < rows; row += 1) {
      for (let column = 0; column < rows; column += 1) {
        const [x, y] = [margin + column * cell, margin + row * cell];
        const sees = mask[row][column] === "1";
        pen.fillStyle = sees && tokens[column] !== null ? token : hidden;
        pen.fillRect(x, y, inner, inner);
        if (sees && tokens[column] === null) { // a smaller square: told from a token without colours
          const edge = Math.max(1, Math.floor(inner / 4));
          pen.fillStyle = slot;
          pen.fillRect(x + edge, y + edge, inner - 2 * edge, inner - 2 * edge);
        }
      }
    }
  }

  _drawGroups(pen, colour) {
    const { rows, labels } = this._layout;
    const [cell, margin] = [this._cell, this._margin];
    pen.font = `${LETTER}px ui-monospace, monospace`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    pen.strokeStyle = colour("--soft");
    pen.fillStyle = colour("--ink");
    pen.lineWidth = 0.5;
    let printed = -LETTER;
    for (let first = 0, end = 0; first < rows; first = end) {
      end = labels.findIndex((label, row) => row > first && label !== labels[first]);
      if (end < 0) end = rows;
      pen.strokeRect(margin, margin + first * cell, rows * cell, (end - first) * cell);
      pen.strokeRect(margin + first * cell, margin, (end - first) * cell, rows * cell);
      const middle = margin + ((first + end) / 2) * cell;
      if (middle - printed < LETTER + 1) continue; // no room for this one's name
      printed = middle;
      pen.fillText(labels[first], margin - 6, middle);
      pen.save();
      pen.translate(middle, margin - 6);
      pen.rotate(Math.PI / 2);
      pen.fillText(labels[first], 0, 0);
      pen.restore();
    }
  }

  _drawCursor(pen, colour) {
    const [cell, margin, rows] = [this._cell, this._margin, this._layout.rows];
    const [row, column] = this._at;
    pen.strokeStyle = colour("--cursor");
    pen.lineWidth = 2;
    pen.strokeRect(margin, margin + row * cell - 0.5, rows * cell, cell);
    pen.strokeRect(margin + column * cell - 0.5, margin + row * cell - 0.5, cell, cell);
  }

  _point(event) {
    const box = this._canvas.getBoundingClientRect();
    const index = (offset) => Math.floor((offset - this._margin) / this._cell);
    this._go(index(event.clientY - box.top), index(event.clientX - box.left));
  }

  _key(event) {
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const [row, column] = this._at ?? [0, 0];
    const inside = (value) => Math.max(0, Math.min(this._layout.rows - 1, value));
    const step = this._at ? move : [0, 0];
    this._go(inside(row + step[0]), inside(column + step[1]));
  }

  _go(row, column) {
    const { rows, mask, labels, positions } = this._layout;
    if (row < 0 || column < 0 || row >= rows || column >= rows) return;
    this._at = [row, column];
    this._draw();
    const seen = labels.map((label, index) => ({ label, position: positions[index], sees: mask[row][index] === "1" }));
    const verb = mask[row][column] === "1" ? "sees" : "does not see";
    this._told.textContent = `${this._name(row)} ${verb} ${this._name(column)}. In all it sees ${groups(seen)}.`;
  }

  _name(index) {
    const { labels, positions, tokens } = this._layout;
    const token = tokens[index] === null ? "MASK" : `“${cellText(tokens[index])}”`;
    return `${labels[index]} at ${positions[index]} (${token})`;
  }
}

/** The rows that are seen, group by group: "S0.2 at 36 37". */
function groups(rows) {
  const found = new Map();
  for (const { label, position, sees } of rows) {
    if (sees) found.set(label, [...(found.get(label) ?? []), position]);
  }
  return [...found].map(([label, positions]) => `${label} at ${positions.join(" ")}`).join("; ") || "the cache alone";
}
