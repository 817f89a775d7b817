"""What vLLM's workers load, by name, to constrain output: a logits processor of its first model
runner, the one that can tell a processor on the host what was said."""

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.v1.sample.logits_processor.interface import BatchUpdate, LogitsProcessor

from engine.vllm.turns import Turn, allowed, turn_of


class TurnProcessor(LogitsProcessor):  # type: ignore[misc]  # vllm is not there when checked
    """Leaves each constrained row only the tokens that its turn may say next."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        self._turns: dict[int, Turn] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._turns, batch_update, self._turn)

    def apply(self, logits: Tensor) -> Tensor:
        if self._turns:
            rows, masks = allowed(self._turns, logits.shape[-1])
            forbidden = torch.from_numpy(~masks).to(logits.device)
            logits[rows] = logits[rows].masked_fill_(forbidden, -torch.inf)
        return logits

    @staticmethod
    def _turn(params: SamplingParams, prompt: list[int] | None, said: list[int]) -> Turn | None:
        return turn_of(params.extra_args, said)
