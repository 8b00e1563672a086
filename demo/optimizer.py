"""AdamW over one flat parameter vector that several processes share.

Each process computes gradients on its own sequences with a single thread; after a step's gradients are there, process r
averages and updates the r-th part of the vector for all. Processes meet three times per step, at barriers that sleep,
which on a busy machine is far cheaper than threads that meet in every matrix product.

Shared memory holds parameters, both moments and one gradient vector per process. Between `backward` and the end of
`step` nobody else may touch them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BETA_1, BETA_2, EPSILON = 0.9, 0.95, 1e-8
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
PIECE = 1 << 16  # values updated at a time: all that an update touches stays in the cache
BARRIER_TIMEOUT_S = 600.0


@dataclass
class Shared:
    """What the processes have in common. Made once by the parent, handed to every process."""

    parameters: Tensor  # [n]
    moments: Tensor  # [2, n]: first and second
    gradients: Tensor  # [processes, n]
    square_norms: Tensor  # [processes], of each process's part of the mean gradient
    control: Tensor  # float64 [2]: learning rate and share of the time budget spent, from process 0
    barrier: object

    @staticmethod
    def make(model: nn.Module, processes: int, context) -> "Shared":
        values = sum(p.numel() for p in model.parameters())
        shared = Shared(
            torch.empty(values),
            torch.zeros(2, values),
            torch.zeros(processes, values),
            torch.zeros(processes),
            torch.zeros(2, dtype=torch.float64),
            context.Barrier(processes, timeout=BARRIER_TIMEOUT_S),
        )
        for tensor in (shared.parameters, shared.moments, shared.gradients, shared.square_norms, shared.control):
            tensor.share_memory_()
        offset = 0
        for parameter in _ordered(model):
            shared.parameters[offset : offset + parameter.numel()] = parameter.detach().flatten()
            offset += parameter.numel()
        return shared


def _ordered(model: nn.Module) -> list[nn.Parameter]:
    """Matrices first, then vectors, which do not decay."""
    return sorted(model.parameters(), key=lambda parameter: parameter.dim() < 2)


class FlatAdamW:
    """Process `rank`'s hand on the shared vector. Rebinds the model's parameters and gradients to it."""

    def __init__(self, model: nn.Module, shared: Shared, rank: int) -> None:
        self.shared, self.rank = shared, rank
        self.spent = 0.0  # share of the time budget, as of the last step; the same in every process
        self.gradient = shared.gradients[rank]
        offset = 0
        for parameter in _ordered(model):
            end = offset + parameter.numel()
            parameter.data = shared.parameters[offset:end].view_as(parameter)
            parameter.grad = self.gradient[offset:end].view_as(parameter)
            offset = end
        decaying = sum(p.numel() for p in model.parameters() if p.dim() >= 2)
        processes = len(shared.gradients)
        begin, end = offset * rank // processes, offset * (rank + 1) // processes
        edges = sorted({*range(begin, end, PIECE), end, min(max(decaying, begin), end)})
        self.pieces = [(slice(a, b), WEIGHT_DECAY if b <= decaying else 0.0) for a, b in zip(edges, edges[1:])]

    def step(self, number: int) -> None:
        """Update number `number` (from 1) from the gradients of all processes; leaves them zero.

        Process 0 sets `control` before it; here it is read while process 0 cannot be writing the next one.
        """
        shared = self.shared
        shared.barrier.wait()
        shared.square_norms[self.rank] = sum(self._average(part) for part, _ in self.pieces)
        shared.barrier.wait()
        scale = min(1.0, MAX_GRADIENT_NORM / (math.sqrt(shared.square_norms.sum().item()) + 1e-12))
        rate, self.spent = shared.control.tolist()
        corrections = 1 - BETA_1**number, math.sqrt(1 - BETA_2**number)
        for part, decay in self.pieces:
            self._update(part, decay, scale, rate, corrections)
        shared.barrier.wait()
        self.gradient.zero_()

    def _average(self, part: slice) -> float:
        """Leaves the mean over the processes in gradients[0]; returns its squared norm."""
        total, *others = self.shared.gradients[:, part]
        for other in others:
            total += other
        total /= len(self.shared.gradients)
        return total.dot(total).item()

    def _update(self, part: slice, decay: float, scale: float, rate: float, corrections: tuple[float, float]) -> None:
        gradient = self.shared.gradients[0, part] * scale
        first, second = self.shared.moments[0, part], self.shared.moments[1, part]
        first.mul_(BETA_1).add_(gradient, alpha=1 - BETA_1)
        second.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        root = second.sqrt().div_(corrections[1]).add_(EPSILON)
        values = self.shared.parameters[part]
        values.mul_(1 - rate * decay).addcdiv_(first, root, value=-rate / corrections[0])
