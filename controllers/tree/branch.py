"""One branch of a tree of continuations of a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chunk_chain import Chunk, ChunkChain
from scaffolding_ext.controllers.prompting import encode
from scaffolding_ext.controllers.tree.beginnings import Beginnings, in_turn
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.protocol.task_results import mean_token_probability
from scaffolding_ext.request.seeds import derive_seed


class Branch(Node):
    """A node with its text: what its ancestors wrote, its own hint, and what is written behind that.

    Args:
        prompt: The task that the tree answers. The branch derives its own seed from the seed of the prompt.
        max_tokens: Tokens of a whole branch, from the root.
        phrasing: The prompt in the branch's own words; None: in those of its parent, or as it stands.
        beginnings: Of the root: how its children begin.
        refines: Of the root: whether each node is a whole solution, and its children are solutions in its place.

    Attributes:
        root: The prompt as it stands.
        prompt: The branch's own copy of the prompt's task, in the words that it reads.
        logprobs: Of the tokens that were decoded from the root on; None once a worker did not report them.
        score: None while nobody has judged it.
        weight: The factor of its score.
        is_cut: Whether a gate or the clock has ended it early.
        exit_layer: The layer after which its verdict was read; None where it was not, or its worker does not say.
    """

    parent: Branch | None

    def __init__(
        self,
        prompt: GenerationTask,
        path: tuple[int, ...],
        max_tokens: int,
        parent: Branch | None = None,
        to_end: bool = False,
        *,
        hint: str = "",
        phrasing: GenerationTask | None = None,
        beginnings: Beginnings | None = None,
        refines: bool = False,
    ) -> None:
        super().__init__(path, parent, to_end)
        self.hint = hint
        self.root = prompt
        self.refines: bool = refines if parent is None else parent.refines
        self.prompt = copy.copy(prompt)
        self.read(phrasing or (prompt if parent is None else parent.prompt))
        self.prompt.customized_result_fields = {}
        notes = meta_of(prompt)
        note(self.prompt, counts=None, draw=(*notes.draw, *path))
        self.prompt.streaming_output_flag, self.prompt.streaming_output_list = False, []
        if prompt.seed is not None:
            self.prompt.seed = derive_seed(prompt.seed, *path)
        # A worker that draws by position goes on under the one seed as if nobody had looked at the branch in between.
        self.chain = ChunkChain(self.prompt, max_tokens, {}, reseeds=False)
        self.logprobs: list[float] | None = []
        self._beginnings = beginnings
        self._top_probabilities = 0.0
        if parent is not None and not self.refines:
            self.chain.keep(parent.chain.as_chunk(), None)
            self.logprobs = None if parent.logprobs is None else list(parent.logprobs)
            self._top_probabilities = parent._top_probabilities
        if hint:
            self.chain.keep(Chunk(hint, encode(hint), 0, 0, "length"), None)
        self.score: float | None = None
        self.weight = 1.0
        self.is_cut = False
        self.exit_layer: int | None = None
        self._answer: str | None = None
        self._has_answered = False

    def _child(self, path: tuple[int, ...], to_end: bool) -> Branch:
        hints, wordings = self._beginnings or ((), ())
        hint, phrasing = in_turn(hints, path[-1]) or "", in_turn(wordings, path[-1])
        return Branch(self.root, path, self.chain.max_tokens, self, to_end, hint=hint, phrasing=phrasing)

    @property
    def has_ended(self) -> bool:
        return self.chain.ended and (self.to_end or not self.refines)

    @property
    def is_whole(self) -> bool:
        return self.chain.ended

    @property
    def inherited_tokens(self) -> list[int]:
        """The ids that its ancestors wrote and that it goes on behind; none where it stands in their place."""
        return [] if self.parent is None or self.refines else self.parent.token_ids

    @property
    def num_own_tokens(self) -> int:
        return self.chain.num_tokens - (0 if self.parent is None or self.refines else self.parent.chain.num_tokens)

    @property
    def own_logprobs(self) -> list[float]:
        """Log-probabilities of the tokens of its own step; an error where there are none."""
        num_before = len(self.parent.logprobs or ()) if self.parent is not None and not self.refines else 0
        return self.known_logprobs()[num_before:]

    @property
    def value(self) -> float:
        assert self.score is not None, "branches are scored before they are compared"
        return self.score * self.weight

    @property
    def token_ids(self) -> list[int]:
        """The ids of all that stands behind the prompt; empty where they are not known."""
        return self.chain.prefix.token_ids or []

    @property
    def prior(self) -> float:
        """Its expected score before it is judged, in [0, 1]: its parent's; 1 where the parent has none."""
        return 1.0 if self.parent is None or self.parent.score is None else min(1.0, max(0.0, self.parent.score))

    @property
    def answer(self) -> str | None:
        """The answer that its controller gave, or that it was asked for; else the answer in its text."""
        return self._answer if self._has_answered else extract(self.chain.text)

    @answer.setter
    def answer(self, answer: str | None) -> None:
        self._answer, self._has_answered = answer, True

    def read(self, wording: GenerationTask) -> None:
        self.prompt.input_str, self.prompt.input_tokens = wording.input_str, wording.input_tokens

    @property
    def prefix_tokens(self) -> list[int]:
        """The ids of all that it may share with its siblings: the prompt, and what their parent wrote."""
        if self.parent is None:
            return self.root.input_tokens or []
        if self.refines:
            return self.prompt.input_tokens or []
        return [*(self.parent.prompt.input_tokens or []), *self.parent.token_ids]

    def advance(self, num_tokens: int) -> list[GenerationTask]:
        return cast("list[GenerationTask]", self.chain.advance(num_tokens))

    def saw(self, logprobs: Sequence[float] | None, confidence: float | None) -> None:
        """Take in the log-probabilities of new tokens, and the mean probability of the likeliest token there."""
        if logprobs is None or confidence is None or self.logprobs is None:
            self.logprobs = None
        else:
            self.logprobs += logprobs
            self._top_probabilities += confidence * len(logprobs)

    @property
    def confidence(self) -> float:
        """The mean probability of the likeliest token, over all decoded tokens; 0 without one (RKSC, eq. 3)."""
        return self._top_probabilities / max(1, len(self.known_logprobs()))

    @property
    def mean_probability(self) -> float:
        """The geometric mean of the probabilities of its tokens, in [0, 1]."""
        return mean_token_probability(self.known_logprobs())

    def known_logprobs(self) -> list[float]:
        """`logprobs`, where there are some.

        Raises:
            NoOutputError: Its worker reported no log-probabilities.
        """
        if self.logprobs is None:
            raise NoOutputError(
                "the worker reported no log-probabilities of a branch, and its confidence is made of them: take a "
                "worker that reports them; or set gates.skip to false, and score branches by {type: verdict, args: "
                "{weighs_confidence: false}} or by a reward controller"
            )
        return self.logprobs
