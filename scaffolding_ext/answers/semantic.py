"""Classes of open-ended answers with equal meaning, by cosine similarity of their embeddings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from scaffolding_ext import require
from scaffolding_ext.errors import MissingDependencyError

Embed = Callable[[Sequence[str]], Any]


def group_by_meaning(answers: Sequence[str | None], embed: Embed, threshold: float = 0.8) -> list[int]:
    """Group answers of equal meaning by hierarchical clustering with average linkage.

    Two clusters merge while the mean similarity between their distinct texts is at least the threshold. The classes do
    not depend on the order of the answers.

    Args:
        answers: The answers; None stands for "no answer" and equals nothing.
        embed: Maps texts to vectors, shape (num_texts, dimension); see `sentence_embedder`.
        threshold: Cosine similarity in (0, 1].

    Returns:
        A class number for each answer, in order of first appearance, -1 for None.

    Raises:
        ValueError: The threshold is outside its range, or `embed` returns another shape or a zero row.

    Reference: average linkage is UPGMA (Sokal and Michener, 1958).
    """
    require.share("threshold", threshold)
    texts = sorted({answer for answer in answers if answer is not None})
    cluster_of = dict.fromkeys(texts, 1)
    if len(texts) > 1:
        tree = linkage(np.maximum(pdist(_embedded(texts, embed), "cosine"), 0.0), "average")
        labels = fcluster(tree, 1 - threshold + 1e-12, "distance")  # a tie joins
        cluster_of = dict(zip(texts, map(int, labels), strict=True))
    numbers: dict[int, int] = {}
    return [-1 if answer is None else numbers.setdefault(cluster_of[answer], len(numbers)) for answer in answers]


def sentence_embedder(model: str, device: str = "cpu") -> Embed:
    """Return an `embed` function that uses a sentence-transformers model (the extra `semantic`).

    Args:
        model: A hub name or a folder, such as `sentence-transformers/all-MiniLM-L6-v2`.
        device: A torch device.

    Raises:
        MissingDependencyError: sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingDependencyError("sentence-transformers", "semantic") from error
    network = SentenceTransformer(model, device=device)
    return lambda texts: network.encode(list(texts), show_progress_bar=False)


def _embedded(texts: list[str], embed: Embed) -> NDArray[np.float64]:
    vectors = np.asarray(embed(texts), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise ValueError(
            f"embed gave an array of shape {vectors.shape} for {len(texts)} texts; one row a text is needed"
        )
    if not np.linalg.norm(vectors, axis=1).all():
        raise ValueError("embed gave a row of zeros, which has no direction")
    return vectors
