"""What changes in the course of a training run: the learning rate and the longest problem."""

from __future__ import annotations

from scaffolding_ext.tinylm.grammar import MAX_NUM_STEPS

WARMUP_STEPS = 60
DECAY_SHARE = 0.32  # the learning rate falls linearly over the last part of the run
# Longest problem from each step on. Copying an operation by its label is learnt within minutes on short problems, and
# hardly at all when all lengths come at once.
CURRICULUM = ((0, 5), (200, 9), (350, 15), (500, MAX_NUM_STEPS))


def learning_rate_scale(step: int, num_steps: int) -> float:
    """Linear warm-up, a plateau, and a linear fall to two percent."""
    remaining = (num_steps - step) / (DECAY_SHARE * num_steps)
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, min(1.0, remaining))


def learning_rate_falls(step: int, num_steps: int) -> bool:
    """Whether a run of that length has lowered its learning rate before a step."""
    return step > (1 - DECAY_SHARE) * num_steps + 1


def curriculum_max_num_steps(step: int) -> int:
    """The longest problem that a run is shown at a step."""
    return max(longest for first_step, longest in CURRICULUM if step >= first_step)
