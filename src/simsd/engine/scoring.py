"""Log-likelihood of given text under the sequential schedule: every token where left-to-right decoding would meet it.

    log p(x) = sum over i of log p(x_i | everything before it revealed, the rest of its block masked)

The states of several tokens, and of several continuations of one text, stand side by side in one forward (method
section 4b): they form a tree, in which continuations share the states of their common beginning.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from simsd.core.draft import BlockState
from simsd.core.layout import Layout, unrolled, with_pending
from simsd.core.prefix import Known
from simsd.core.states import States
from simsd.engine.places import common
from simsd.engine.runner import PREFILL_ROWS, Runner
from simsd.errors import NumericalError, PromptError

# Query tokens that the states of one forward may come to: their mask grows with the square. On a CPU more are slower.
MOST_ROWS = 512

Text = tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """How likely a continuation is, token by token.

    logprobs: log p of each token; greedy: whether the token was the likeliest of its place.
    """

    logprobs: list[float] = field(default_factory=list)
    greedy: list[bool] = field(default_factory=list)

    @property
    def total(self) -> float:
        """Log-likelihood of the whole continuation, in nats."""
        return sum(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """True if greedy left-to-right decoding would have written exactly this."""
        return all(self.greedy)


class Tree:
    """The states in which the tokens behind a text are predicted.

    tail: the known beginning of the first block. A state is named by its text since that block's start, and is open
    (its next token is to be predicted) or closed (a finished block, which the states of the next block see).
    """

    def __init__(self, tail: Many[int], block_length: int, mask_id: int, most: int) -> None:
        """most: how many states there may be."""
        self.tail = tuple(tail)
        self.block_length = block_length
        self.mask_id = mask_id
        self.most = most
        self._open: dict[Text, int] = {}
        self._closed: dict[Text, int] = {}

    def add(self, tokens: Many[int]) -> int:
        """Adds the states that predict these tokens, as many as there is room for; returns how many tokens that is."""
        text = self.tail
        for count, token in enumerate(tokens):
            done = text[: len(text) // self.block_length * self.block_length]
            missing = [(self._open, text)] if text not in self._open else []
            if done and done not in self._closed:
                missing.append((self._closed, done))
            used = len(self._open) + len(self._closed)
            if used + len(missing) > self.most:
                return count
            for states, name in missing:
                states[name] = len(states)
            text = (*text, token)
        return len(tokens)

    def entry(self, tokens: Many[int], index: int) -> int:
        """Which judged row predicts `tokens[index]`."""
        return self._open[self.tail + tuple(tokens[:index])]

    def layout(self, start: int, device: torch.device) -> Layout:
        """All states as one layout behind `start` stored tokens, judged at the next place of each open one."""
        size = self.block_length
        first = len(self._open)  # the closed states stand behind the open ones
        names = [*self._open, *self._closed]
        block = [len(text) // size for text in self._open] + [len(text) // size - 1 for text in self._closed]
        own = [text[w * size :] for text, w in zip(names, block, strict=True)]
        parent = [first + self._closed[text[: w * size]] if w else -1 for text, w in zip(names, block, strict=True)]
        known = [len(self.tail) if w == 0 else 0 for w in block]

        def row(values: list[int]) -> Tensor:
            return torch.tensor([values], device=device)

        states = States(
            tokens=torch.tensor([[[*text, *[self.mask_id] * (size - len(text))] for text in own]], device=device),
            block=row(block),
            parent=row(parent),
            taken=row([len(text) - before for text, before in zip(own, known, strict=True)]),
            valid=torch.ones(1, len(names), dtype=torch.bool, device=device),
            mask_id=self.mask_id,
            blocks=max(block) + 1,
        )
        now = BlockState(states.tokens[:, 0], row([start])[0], row([0])[0], self.mask_id)
        judge = [index * size + len(text) % size for index, text in enumerate(self._open)]
        return replace(unrolled(now, states), judge=row(judge))


class Scorer:
    """Scores continuations with a target model. Keeps the last text's K/V, so that what two calls share is computed
    once; several threads may call.
    """

    def __init__(self, runner: Runner, max_model_len: int) -> None:
        self.runner = runner
        self.max_model_len = max_model_len
        self._stored: list[int] = []  # text, in whole blocks, whose K/V the cache holds
        self._lock = threading.Lock()

    @torch.inference_mode()
    def score(self, context: list[int], continuations: Many[list[int]]) -> list[Score]:
        """One score a continuation of `context`; either may be empty.

        Raises: PromptError where both together are too long; NumericalError.
        """
        longest = len(context) + max(map(len, continuations), default=0)
        if longest > self.max_model_len:
            raise PromptError(
                f"context and continuation have {longest} tokens together, but at most {self.max_model_len} can be "
                "scored; shorten the context, or raise max_model_len where the model allows it"
            )
        scores = [Score() for _ in continuations]
        work = [(context, dict(enumerate(continuations)))]
        with self._lock:
            while work:
                known, rest = work.pop()
                rest = {index: tokens for index, tokens in rest.items() if tokens}
                if rest:
                    judged = self._judge(known, rest, scores)
                    work += _left(known, rest, judged)
        return scores

    def _judge(self, known: list[int], rest: dict[int, list[int]], scores: list[Score]) -> dict[int, int]:
        """One forward for what follows `known`; returns how many tokens of each continuation it has judged."""
        size, mask_id = self.runner.block_length, self.runner.mask_id
        begin = len(known) // size * size
        tree = Tree(known[begin:], size, mask_id, max(1, MOST_ROWS // size))
        judged = {index: tree.add(tokens) for index, tokens in rest.items()}
        places = [(i, tree.entry(rest[i], n), rest[i][n]) for i, count in judged.items() for n in range(count)]
        logits = self._logits(tree, known[:begin])
        owner, entry, token = zip(*places, strict=True)
        entry, token = (torch.tensor(column, device=logits.device) for column in (entry, token))
        found = logits[entry, token] - logits.logsumexp(-1)[entry]
        greedy = logits.argmax(-1)[entry] == token
        for index, logprob, best in zip(owner, found.tolist(), greedy.tolist(), strict=True):
            if logprob != logprob:
                self._stored = []
                raise NumericalError(
                    f"the target's logits were not numbers behind position {len(known)}; "
                    "the weights or the dtype overflow: try dtype float32 or bfloat16"
                )
            scores[index].logprobs.append(logprob)
            scores[index].greedy.append(best)
        return judged

    def _logits(self, tree: Tree, text: list[int]) -> Tensor:
        """[J, V] of the tree's judged rows behind `text`, whose last blocks are stored by the same forward."""
        size, device = self.runner.block_length, self.runner.model.device
        stored, self._stored = self._stored, []  # nothing is, should this forward fail
        shared = common(stored, text, size)
        ahead = max(shared, len(text) - PREFILL_ROWS // size * size)
        if shared == 0:
            self.runner.clear(0)
        if ahead > shared:
            self.runner.prefill(0, text[shared:ahead], shared)
        pending = torch.tensor(text[ahead:], dtype=torch.long, device=device).view(1, (len(text) - ahead) // size, size)
        count = torch.tensor([pending.shape[1]], device=device)
        start = torch.tensor([len(text)], device=device)
        layout = with_pending(tree.layout(len(text), device), pending, count, start)
        logits = self.runner.logits(layout, Known([ahead], [0]))[0]
        self._stored = text
        return logits


def _left(
    known: list[int], rest: dict[int, list[int]], judged: dict[int, int]
) -> list[tuple[list[int], dict[int, list[int]]]]:
    """What is still to be judged, those together that go on from the same text."""
    after: dict[Text, dict[int, list[int]]] = defaultdict(dict)
    for index, tokens in rest.items():
        count = judged[index]
        after[tuple(tokens[:count])][index] = tokens[count:]
    return [(known + list(said), more) for said, more in after.items()]
