"""How long steps take, learned from those that were run.

A step's time is a constant, a part for each sequence that generates, and a part for each token of a
prompt: least squares over the last few hundred steps.
"""

import numpy as np

DECAY = 0.99
"""What a step counts for after each later one."""
LEAST_STEPS = 16
"""Before so many steps nothing is known."""
OUTLIER = 4.0
"""A step counts for at most so many times as long as expected: one in which the machine stood still
would otherwise make the estimates useless for some hundred steps."""
SCALE = np.array([1.0, 16.0, 256.0])
"""Of the three numbers of a step, so that they weigh about the same."""
RIDGE = 1e-3
"""Holds what the steps say nothing of, as all were alike, near zero."""


class StepCosts:
    """Estimates in seconds."""

    def __init__(self) -> None:
        self._products = np.zeros((3, 3))
        self._sums = np.zeros(3)
        self._steps = 0
        self._fixed = self.generating = self.prompt_token = 0.0

    @property
    def known(self) -> bool:
        """Whether there were steps enough."""
        return self._steps >= LEAST_STEPS

    def observe(self, generating: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        expected = self.seconds(generating, prompt_tokens)
        if self.known and expected > 0:
            seconds = min(seconds, OUTLIER * expected)
        step = np.array([1.0, generating, prompt_tokens]) / SCALE
        self._products = DECAY * self._products + np.outer(step, step)
        self._sums = DECAY * self._sums + seconds * step
        self._steps += 1
        ridge = RIDGE * np.trace(self._products) * np.eye(3)
        found = np.linalg.solve(self._products + ridge, self._sums) / SCALE
        self._fixed, self.generating, self.prompt_token = np.maximum(found, 0).tolist()

    def seconds(self, generating: int, prompt_tokens: int) -> float:
        """What a step is expected to take."""
        return self._fixed + generating * self.generating + prompt_tokens * self.prompt_token
