"""One forward pass of a model over a layout: slots, the additive mask, and logits of the judged rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from simsd.core.layout import Layout, block_causal
from simsd.core.prefix import Bucket, Known, Prefix
from simsd.engine.graphs import Graphs
from simsd.engine.places import Places, Source
from simsd.models.protocol import Model

PREFILL_ROWS = 512
ALIGNED = 16  # slots: the mask's rows of a graph are as long as kernels like them


class Runner:
    """A model with its cache. Sequences 0 .. N-1 of the cache are the batch; the engine owns their lengths.

    Tail rows are written behind what is stored, so that committing them is counting them as stored, and rolling
    back is doing nothing (method section 6).
    """

    def __init__(
        self,
        model: Model,
        mask_id: int,
        block_length: int,
        max_position: int,
        longest: int | None = None,
        *,
        prefix_caching: bool = True,
        graphs: Graphs | None = None,
        most_sequences: int = 1,
    ) -> None:
        """longest: tokens that a sequence may come to; room ahead of need is not made beyond it. None: max_position.

        most_sequences: likewise how many there may be side by side.
        prefix_caching: a new sequence takes over what a place of the cache holds of its beginning.
        graphs: of `run`; its own, because they know where its cache is.
        """
        self.model = model
        self.mask_id = mask_id
        self.block_length = block_length
        self.max_position = max_position
        self.longest = max_position if longest is None else longest
        self.prefix_caching = prefix_caching
        self.graphs = graphs
        self.most_sequences = most_sequences
        self.piece = max(PREFILL_ROWS // block_length, 1) * block_length
        self.cache: Any = None
        self._places = Places(block_length)

    def another(self) -> Runner:
        """One like it, with a cache of its own."""
        graphs = None if self.graphs is None else self.graphs.fresh()
        given = (self.model, self.mask_id, self.block_length, self.max_position, self.longest)
        caching, most = self.prefix_caching, self.most_sequences
        return Runner(*given, prefix_caching=caching, graphs=graphs, most_sequences=most)

    def reserve(self, sequences: int, slots: int) -> None:
        """Makes room for that many sequences of that many tokens, scratch included."""
        if self.cache is None:
            self.cache = self.model.make_cache(sequences, slots)
        if sequences <= self.cache.sequences and slots <= self.cache.capacity:
            return
        if self.graphs is not None:
            self.graphs.clear()
        if sequences > self.cache.sequences:
            twice = 1 << (sequences - 1).bit_length()  # each time all is copied, and all graphs are dropped
            self.cache.grow_sequences(max(sequences, min(twice, self.most_sequences)))
        if slots > self.cache.capacity:
            self.cache.grow(max(slots, min(self.cache.capacity * 3 // 2, self.longest)))

    @property
    def recorded(self) -> int:
        """Graphs recorded so far."""
        return 0 if self.graphs is None else self.graphs.recorded

    def run(self, function: Callable[[Any], Any], given: Any) -> Any:
        """`function(given)`: as a graph, where there are graphs; `Graphs` says what the function may do."""
        return function(given) if self.graphs is None else self.graphs(function, given)

    def prefix(self, stored: Sequence[int], skipped: Sequence[int], there: Tensor, ahead: int = 0) -> Prefix:
        """What a forward, of a function that `run` is given, has to know of the cache.

        stored, skipped: as in `Known`; there: [N] `stored` on the device. ahead: tokens that `and_on` may add.
        """
        if self.graphs is None:
            return Known(stored, skipped)
        need = max(stored) + ahead
        return Bucket(there, max(need, min(self.graphs.reach(need), self.longest)))

    def hidden(self, layout: Layout, prefix: Prefix, first: int = 0) -> Tensor:
        """Runs the layout's rows for cache places first .. first+N-1 and returns their hidden states [N, R, H]."""
        batch, rows = layout.ids.shape
        if isinstance(prefix, Known):
            length = max(prefix.stored) + rows
        else:
            length = -(-(prefix.reach + rows) // ALIGNED) * ALIGNED
        self.reserve(first + batch, length + 1)
        slots, bias = self._place(layout, prefix, length)
        cache = self.cache if batch == self.cache.sequences else self.cache.slice(first, batch)
        positions = layout.positions.clamp(max=self.max_position - 1)
        return self.model.forward(layout.ids, positions, bias, cache, slots, length)

    def logits(self, layout: Layout, prefix: Prefix) -> Tensor:
        """Logits [N, J, V] of the judged rows, with -inf for MASK."""
        hidden = self.hidden(layout, prefix)
        judged = layout.judge[..., None].expand(-1, -1, hidden.shape[-1])
        hidden = hidden.gather(1, judged)  # as many as there are rows need not be all of them, in their order
        logits = self.model.head(hidden)
        logits[..., self.mask_id].fill_(-torch.inf)
        return logits

    def prefill(self, slot: int, ids: Sequence[int], stored: int = 0) -> None:
        """Stores the K/V of whole blocks of text behind `stored` tokens, in pieces of bounded size."""
        end = stored + len(ids)
        self.reserve(slot + 1, end + 1)
        for begin in range(stored, end, self.piece):
            part = torch.tensor([ids[begin - stored : begin - stored + self.piece]], device=self.model.device)
            layout = block_causal(part, torch.tensor([begin], device=part.device), self.block_length)
            self.hidden(layout, Known([begin], [0]), first=slot)

    def settle(self) -> None:
        """Waits until the model has done all that it was asked for."""
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)

    def clear(self, slot: int, first: int = 0) -> None:
        """Empties a place from slot `first` on: an earlier sequence may have left what is not a number there, and even
        what the mask hides enters the product, with weight 0."""
        self.reserve(slot + 1, first + 1)
        self.cache.clear(slot, first)

    # ------------------------------------------------------------------ places of the batch
    def open(self, slot: int, ids: Sequence[int]) -> int:
        """Gives a place behind the running sequences to a new text; returns how many tokens of it are stored there
        then, taken over from a place that holds them. `prefill` and `hold` do the rest."""
        self.reserve(slot + 1, len(ids) + 1)
        source = self._places.find(ids, slot) if self.prefix_caching else Source(slot, 0)
        if source.place > slot:  # nobody runs there: what `slot` holds may stay there
            self.take(slot, source.place, source.tokens)
        else:
            self.hold(slot, ())  # an interruption leaves no text that is not there
            if source.place < slot:
                self.cache.copy(source.place, slot, source.tokens)
            self.clear(slot, source.tokens)
        self.hold(slot, ids[: source.tokens])
        return source.tokens

    def hold(self, slot: int, ids: Sequence[int]) -> None:
        """`slot` holds the K/V of this text, for others to begin with."""
        self._places.hold(slot, ids)

    def take(self, slot: int, source: int, stored: int) -> None:
        """The sequence at `source`, of `stored` tokens, takes `slot`; the text that was held there changes over."""
        if slot != source:
            left, come = self._places.text(slot), self._places.text(source)
            for place in (slot, source):
                self.hold(place, ())
            self.cache.swap(slot, source, max(stored, len(left)))
            self.clear(slot, stored)
            self.hold(slot, come[:stored])
            self.hold(source, left)

    def leave(self, slot: int, ids: Sequence[int], last: int, stored: int) -> None:
        """A sequence has ended, of which `ids` are stored; the one at `last`, of `stored` tokens, takes its place.

        The ended one's text stays where that came from, until that place is needed.
        """
        self.hold(slot, ids)
        self.take(slot, last, stored)

    def _place(self, layout: Layout, prefix: Prefix, length: int) -> tuple[int | Tensor, Tensor]:
        """Where the rows are written, and the additive mask [N, 1, R, length] of what they see."""
        mask = layout.mask
        batch, rows = layout.ids.shape
        if isinstance(prefix, Bucket):
            have = prefix.stored[:, None]
        elif min(prefix.stored) == max(prefix.stored) and not any(prefix.skipped):
            begin = prefix.stored[0]
            seen = torch.ones(batch, rows, length, dtype=torch.bool, device=mask.device)
            seen[:, :, begin:] = mask
            return begin, self._additive(seen)
        else:
            have = torch.tensor(prefix.stored, device=mask.device)[:, None]
        slots = have + torch.arange(rows, device=mask.device) - layout.skip[:, None]
        fill = torch.arange(rows, device=mask.device) < layout.skip[:, None]
        slots = torch.where(fill, self.cache.capacity - 1, slots)  # fill-up rows write where nobody reads
        seen = (torch.arange(length + 1, device=mask.device) < have)[:, None].repeat(1, rows, 1)
        columns = slots.clamp(max=length)[:, None].expand(-1, rows, -1)
        seen.scatter_(2, columns, mask)
        seen = seen[..., :length]
        seen[..., 0] |= fill  # a row that sees nothing would be NaN
        return slots, self._additive(seen)

    def _additive(self, seen: Tensor) -> Tensor:
        bias = torch.zeros(seen.shape, dtype=self.model.dtype, device=seen.device)
        return bias.masked_fill_(~seen, -torch.inf)[:, None]
