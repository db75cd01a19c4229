"""Branch of a tree of continuations of a prompt."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chunk_chain import Chunk, ChunkChain
from scaffolding_ext.controllers.prompting import encode
from scaffolding_ext.controllers.tree.beginnings import BranchPrompts, in_turn
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.protocol.task_results import mean_token_probability
from scaffolding_ext.request.seeds import derive_seed


class Branch(Node):
    """A node with its text: its ancestors' text, its hint, and its continuation.

    Args:
        prompt: Task that the tree answers; the branch derives its seed from the task's.
        max_tokens: Tokens of a whole branch, from the root.
        phrasing: The branch's wording of the prompt; None inherits the parent's.
        beginnings: Of the root: beginnings of its children.

    Attributes:
        prompt: The branch's copy of the task, in its wording.
        logprobs: Of the tokens decoded from the root on; None if the worker did not report all of them.
        is_cut: Ended early by a gate or the clock.
        exit_layer: Layer after which its verdict was read; None if there was none, or the worker does not report it.
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
        beginnings: BranchPrompts | None = None,
    ) -> None:
        super().__init__(path, parent, to_end)
        self.hint = hint
        self.root = prompt
        self.prompt = copy.copy(prompt)
        self.read(phrasing or (prompt if parent is None else parent.prompt))
        self.prompt.customized_result_fields = {}
        notes = meta_of(prompt)
        note(self.prompt, counts=None, draw=(*notes.draw, *path))
        self.prompt.streaming_output_flag, self.prompt.streaming_output_list = False, []
        if prompt.seed is not None:
            self.prompt.seed = derive_seed(prompt.seed, *path)
        # One seed for all chunks: a worker that draws by position samples the same tokens for any chunk length.
        self.chain = ChunkChain(self.prompt, max_tokens, {}, reseeds=False)
        self.logprobs: list[float] | None = []
        self._beginnings = beginnings
        self._top_probabilities = 0.0
        if parent is not None:
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
        return self.chain.ended

    @property
    def is_settled(self) -> bool:
        """True if it is written, and scored or cut."""
        return self.is_cut or self.score is not None

    @property
    def text(self) -> str:
        return self.chain.text

    @property
    def is_whole(self) -> bool:
        return self.chain.ended

    @property
    def inherited_tokens(self) -> list[int]:
        """Token ids of its ancestors."""
        return [] if self.parent is None else self.parent.token_ids

    @property
    def num_own_tokens(self) -> int:
        return self.chain.num_tokens - (0 if self.parent is None else self.parent.chain.num_tokens)

    @property
    def own_logprobs(self) -> list[float]:
        """Log-probabilities of its step's tokens; raises if there are none."""
        num_before = len(self.parent.logprobs or ()) if self.parent is not None else 0
        return self.known_logprobs()[num_before:]

    @property
    def value(self) -> float:
        """Its score times its weight; 0 before it is scored."""
        return 0.0 if self.score is None else self.score * self.weight

    @property
    def token_ids(self) -> list[int]:
        """Token ids after the prompt; empty if unknown."""
        return self.chain.prefix.token_ids or []

    @property
    def prior(self) -> float:
        """Expected score in [0, 1] before it is judged: its parent's, or 1 if the parent has none."""
        return 1.0 if self.parent is None or self.parent.score is None else min(1.0, max(0.0, self.parent.score))

    @property
    def answer(self) -> str | None:
        """The answer set by its controller or forced; otherwise the one in its text."""
        return self._answer if self._has_answered else extract(self.chain.text)

    @answer.setter
    def answer(self, answer: str | None) -> None:
        self._answer, self._has_answered = answer, True

    def read(self, wording: GenerationTask) -> None:
        self.prompt.input_str, self.prompt.input_tokens = wording.input_str, wording.input_tokens

    @property
    def prefix_tokens(self) -> list[int]:
        """Token ids that it may share with its siblings: the prompt and their parent's text."""
        if self.parent is None:
            return self.root.input_tokens or []
        return [*(self.parent.prompt.input_tokens or []), *self.parent.token_ids]

    def advance(self, num_tokens: int) -> list[GenerationTask]:
        return cast("list[GenerationTask]", self.chain.advance(num_tokens))

    def saw(self, logprobs: Sequence[float] | None, confidence: float | None) -> None:
        """Add the log-probabilities of new tokens, and the mean probability of the likeliest token at each."""
        if logprobs is None or confidence is None or self.logprobs is None:
            self.logprobs = None
        else:
            self.logprobs += logprobs
            self._top_probabilities += confidence * len(logprobs)

    @property
    def confidence(self) -> float:
        """Mean probability of the likeliest token over all decoded tokens; 0 without any (RKSC, eq. 3)."""
        return self._top_probabilities / max(1, len(self.known_logprobs()))

    @property
    def mean_probability(self) -> float:
        return mean_token_probability(self.known_logprobs())

    def known_logprobs(self) -> list[float]:
        """Return `logprobs`.

        Raises:
            NoOutputError: The worker reported no log-probabilities.
        """
        if self.logprobs is None:
            raise NoOutputError(
                "the worker reported no log-probabilities of a branch, which its confidence needs: use a worker that "
                "reports them, or set gates.skip to false and score branches by {type: verdict, args: "
                "{weighs_confidence: false}} or by a reward controller"
            )
        return self.logprobs
