"""The demo model in PyTorch: architecture `qwen35moe` as llama.cpp v0.4.0 computes it.

Every parameter carries the name of its GGUF tensor and, but for `ssm_a` (kept here as the logarithm of its
negation), its value and layout: `state_dict()` is the file. Normalisation weights multiply as they are.

A block is a token mixer (gated delta net, or gated attention in every fourth block) and a mixture of experts
(routed plus one shared), both behind an RMS norm and added to the residual stream. Block `n_layer`, the last in
the file, is the multi-token-prediction block: it reads the hidden state after position p and token p + 1, and
predicts token p + 2.

Shapes: B sequences, T positions, N = B * T rows, D = n_embd, H heads.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ROUTER_WEIGHT_SUM = 6.103515625e-5  # llama.cpp's lower bound (2^-14) for the sum the top-k weights are divided by


@dataclass(frozen=True)
class Config:
    """Sizes; the names follow the GGUF keys they are written to."""

    n_vocab: int = 2048
    n_embd: int = 256
    n_layer: int = 8
    n_layer_nextn: int = 1
    full_attention_interval: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    rope_dim: int = 16
    rope_sections: tuple[int, int, int, int] = (3, 3, 2, 0)  # sums to rope_dim / 2: text rotates all of them alike
    rope_base: float = 10000.0
    n_expert: int = 16
    n_expert_used: int = 4
    n_ff_expert: int = 256
    n_ff_shared: int = 256
    conv_kernel: int = 4
    state_dim: int = 64  # of a delta-net head, keys and values alike
    n_key_heads: int = 2
    n_value_heads: int = 4
    norm_eps: float = 1e-6

    @property
    def key_width(self) -> int:
        return self.state_dim * self.n_key_heads

    @property
    def value_width(self) -> int:
        return self.state_dim * self.n_value_heads

    def is_recurrent(self, layer: int) -> bool:
        return layer < self.n_layer and (layer + 1) % self.full_attention_interval != 0


class Norm(nn.Module):
    """RMS norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Vector(nn.Module):
    """A bare parameter, so that its tensor name can end in `.weight` or `.bias`."""

    def __init__(self, kind: str, value: Tensor) -> None:
        super().__init__()
        self.register_parameter(kind, nn.Parameter(value))


def linear(n_in: int, n_out: int, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(layer.weight, std=0.5 * gain / math.sqrt(n_in))
    return layer


class Experts(nn.Module):
    """One matrix per expert, [n_expert, n_out, n_in]: the expert is the outermost dimension, as in the file."""

    def __init__(self, n_expert: int, n_in: int, n_out: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_expert, n_out, n_in) * (0.5 * gain / math.sqrt(n_in)))


class _Dispatch(torch.autograd.Function):
    """Rows [N, D] -> one row per (row, slot) pair [N * k, D], sorted by expert. Its transpose is _Combine."""

    @staticmethod
    def forward(ctx, rows: Tensor, order: Tensor, place: Tensor, slots: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(place)
        ctx.slots = slots
        return rows.index_select(0, torch.div(order, slots, rounding_mode="floor"))

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        (place,) = ctx.saved_tensors
        return grad.index_select(0, place).view(-1, ctx.slots, grad.shape[1]).sum(1), None, None, None


class _Combine(torch.autograd.Function):
    """Pair rows sorted by expert [N * k, D] -> the sum over each row's slots [N, D]."""

    @staticmethod
    def forward(ctx, pairs: Tensor, order: Tensor, place: Tensor, slots: int) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(order)
        ctx.slots = slots
        return pairs.index_select(0, place).view(-1, slots, pairs.shape[1]).sum(1)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        (order,) = ctx.saved_tensors
        return grad.index_select(0, torch.div(order, ctx.slots, rounding_mode="floor")), None, None, None


class _ExpertFeedForward(torch.autograd.Function):
    """down(silu(gate(x)) * up(x)) of rows [M, D] sorted by expert, counts[e] of them for expert e.

    By hand, because the generic gradient of picking one matrix out of a stack writes the whole stack.
    """

    @staticmethod
    def forward(ctx, rows, gate_weight, up_weight, down_weight, counts):  # type: ignore[override]
        gate, up = (rows.new_empty(len(rows), gate_weight.shape[1]) for _ in range(2))
        out = torch.empty_like(rows)
        spans = list(_spans(counts))
        for expert, span in spans:
            torch.mm(rows[span], gate_weight[expert].t(), out=gate[span])
            torch.mm(rows[span], up_weight[expert].t(), out=up[span])
        active = F.silu(gate).mul_(up)
        for expert, span in spans:
            torch.mm(active[span], down_weight[expert].t(), out=out[span])
        ctx.save_for_backward(rows, gate_weight, up_weight, down_weight, gate, up)
        ctx.spans = spans
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[override]
        rows, gate_weight, up_weight, down_weight, gate, up = ctx.saved_tensors
        activation = F.silu(gate)
        active = activation * up
        grad_active, grad_rows = torch.empty_like(gate), torch.empty_like(rows)
        weights = (gate_weight, up_weight, down_weight)
        grad_gate_weight, grad_up_weight, grad_down_weight = map(torch.empty_like, weights)
        for expert, span in ctx.spans:
            torch.mm(grad[span], down_weight[expert], out=grad_active[span])
            torch.mm(grad[span].t(), active[span], out=grad_down_weight[expert])
        grad_up = activation.mul_(grad_active)
        grad_gate = torch.ops.aten.silu_backward(grad_active.mul_(up), gate)
        for expert, span in ctx.spans:
            torch.mm(grad_gate[span].t(), rows[span], out=grad_gate_weight[expert])
            torch.mm(grad_up[span].t(), rows[span], out=grad_up_weight[expert])
            torch.mm(grad_gate[span], gate_weight[expert], out=grad_rows[span])
            grad_rows[span].addmm_(grad_up[span], up_weight[expert])
        return grad_rows, grad_gate_weight, grad_up_weight, grad_down_weight, None


def _spans(counts: list[int]):
    """(index, slice) of consecutive groups of the given sizes."""
    begin = 0
    for index, count in enumerate(counts):
        yield index, slice(begin, begin + count)
        begin += count


def rotate(x: Tensor, config: Config) -> Tensor:
    """Rotary position of the first `rope_dim` values per head of x [B, T, H, head_dim], in pairs (i, i + half)."""
    half = config.rope_dim // 2
    frequency = config.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = (part.to(x.dtype)[None, :, None, :] for part in (angle.cos(), angle.sin()))
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((low * cos - high * sin, low * sin + high * cos, rest), -1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    """The gated delta rule from an empty state. q, k, v [B, H, T, S]; log_decay, beta [B, H, T]; returns [B, H, T, S].

    Per position: state *= exp(log_decay); state += k (x) beta (v - k state); output = q state / sqrt(S).
    Here in blocks of `chunk` positions: inside a block the corrections form a unit lower triangular system, between
    blocks only the state is carried.
    """
    length, width = q.shape[2], q.shape[3]
    padding = -length % chunk
    if padding:
        q, k, v = (F.pad(x, (0, 0, 0, padding)) for x in (q, k, v))
        log_decay, beta = (F.pad(x, (0, padding)) for x in (log_decay, beta))
    q, k, v = (x.unflatten(2, (-1, chunk)) for x in (q / math.sqrt(width), k, v))
    total = log_decay.unflatten(2, (-1, chunk)).cumsum(-1)  # decay since the block's start, inclusive
    beta = beta.unflatten(2, (-1, chunk)).unsqueeze(-1)

    causal = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~causal, -math.inf).exp()
    weighted_k = k * beta
    system = (weighted_k @ k.transpose(-1, -2) * decay).tril(-1) + torch.eye(chunk)
    from_start = total.exp().unsqueeze(-1)
    solved = torch.linalg.solve_triangular(
        system, torch.cat((v * beta, weighted_k * from_start), -1), upper=False, unitriangular=True
    )
    values, removal = solved[..., :width], solved[..., width:]
    inside = q @ k.transpose(-1, -2) * decay
    q = q * from_start
    k = k * (total[..., -1:] - total).exp().unsqueeze(-1)
    block_decay = total[..., -1].exp()[..., None, None]

    state = q.new_zeros(q.shape[0], q.shape[1], width, width)
    outputs = []
    for block in range(q.shape[2]):
        written = values[:, :, block] - removal[:, :, block] @ state
        outputs.append(q[:, :, block] @ state + inside[:, :, block] @ written)
        state = state * block_decay[:, :, block] + k[:, :, block].transpose(-1, -2) @ written
    return torch.cat(outputs, 2)[:, :, :length]


class Block(nn.Module):
    """One decoder block. `recurrent` picks the gated delta net, otherwise gated attention."""

    def __init__(self, config: Config, recurrent: bool) -> None:
        super().__init__()
        self.config, self.recurrent = config, recurrent
        width, eps = config.n_embd, config.norm_eps
        out_gain = 1 / math.sqrt(2 * config.n_layer)
        self.attn_norm = Norm(width, eps)
        self.post_attention_norm = Norm(width, eps)
        if recurrent:
            mixed, heads = 2 * config.key_width + config.value_width, config.n_value_heads
            self.attn_qkv = linear(width, mixed)
            self.attn_gate = linear(width, config.value_width)
            self.ssm_conv1d = Vector("weight", torch.randn(mixed, config.conv_kernel) / math.sqrt(config.conv_kernel))
            time_step = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
            self.ssm_dt = Vector("bias", torch.log(torch.expm1(time_step)))  # softplus(bias) == time_step
            self.ssm_a_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
            self.ssm_beta = linear(width, heads)
            self.ssm_alpha = linear(width, heads)
            self.ssm_norm = Norm(config.state_dim, eps)
            self.ssm_out = linear(config.value_width, width, out_gain)
        else:
            heads_width = config.head_dim * config.n_head
            self.attn_q = linear(width, 2 * heads_width)  # per head: query, then output gate
            self.attn_k = linear(width, config.head_dim * config.n_head_kv)
            self.attn_v = linear(width, config.head_dim * config.n_head_kv)
            self.attn_q_norm = Norm(config.head_dim, eps)
            self.attn_k_norm = Norm(config.head_dim, eps)
            self.attn_output = linear(heads_width, width, out_gain)
        self.ffn_gate_inp = linear(width, config.n_expert)
        self.ffn_gate_exps = Experts(config.n_expert, width, config.n_ff_expert)
        self.ffn_up_exps = Experts(config.n_expert, width, config.n_ff_expert)
        self.ffn_down_exps = Experts(config.n_expert, config.n_ff_expert, width, out_gain)
        self.ffn_gate_inp_shexp = Vector("weight", torch.zeros(width))
        self.ffn_gate_shexp = linear(width, config.n_ff_shared)
        self.ffn_up_shexp = linear(width, config.n_ff_shared)
        self.ffn_down_shexp = linear(config.n_ff_shared, width, out_gain)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, D] -> (the same shape, the load-balance loss)."""
        mixed = self.attn_norm(x)
        x = x + (self.delta_net(mixed) if self.recurrent else self.attention(mixed))
        rows = self.post_attention_norm(x).flatten(0, 1)
        routed, balance = self.routed_experts(rows)
        return x + (routed + self.shared_expert(rows)).view_as(x), balance

    def delta_net(self, x: Tensor) -> Tensor:
        c, length = self.config, x.shape[1]
        mixed = F.pad(self.attn_qkv(x), (0, 0, c.conv_kernel - 1, 0))
        taps = self.ssm_conv1d.weight.unbind(1)
        mixed = F.silu(sum(mixed[:, tap : tap + length] * taps[tap] for tap in range(c.conv_kernel)))
        q, k, v = mixed.split((c.key_width, c.key_width, c.value_width), -1)
        q, k = (self.unit_heads(part, c.n_key_heads) for part in (q, k))
        v = v.unflatten(-1, (c.n_value_heads, c.state_dim)).transpose(1, 2)
        beta = self.ssm_beta(x).sigmoid().transpose(1, 2)
        log_decay = (F.softplus(self.ssm_alpha(x) + self.ssm_dt.bias) * -self.ssm_a_log.exp()).transpose(1, 2)
        repeats = c.n_value_heads // c.n_key_heads  # value head h reads key head h mod n_key_heads
        out = delta_rule(q.repeat(1, repeats, 1, 1), k.repeat(1, repeats, 1, 1), v, log_decay, beta)
        out = self.ssm_norm(out.transpose(1, 2)).flatten(2)
        return self.ssm_out(out * F.silu(self.attn_gate(x)))

    def unit_heads(self, x: Tensor, heads: int) -> Tensor:
        """x [B, T, heads * S] -> [B, heads, T, S] with every vector scaled to length one."""
        return F.normalize(x.unflatten(-1, (heads, -1)), dim=-1, eps=self.config.norm_eps).transpose(1, 2)

    def attention(self, x: Tensor) -> Tensor:
        c, length = self.config, x.shape[1]
        q, gate = self.attn_q(x).unflatten(-1, (c.n_head, 2, c.head_dim)).unbind(-2)
        k = self.attn_k(x).unflatten(-1, (c.n_head_kv, c.head_dim))
        v = self.attn_v(x).unflatten(-1, (c.n_head_kv, c.head_dim))
        q, k = rotate(self.attn_q_norm(q), c), rotate(self.attn_k_norm(k), c)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k, v = (part.repeat_interleave(c.n_head // c.n_head_kv, 1) for part in (k, v))
        future = torch.full((length, length), -math.inf).triu_(1)
        q, k = (part.flatten(0, 1) for part in (q, k))
        scores = torch.baddbmm(future, q, k.transpose(-1, -2), alpha=1 / math.sqrt(c.head_dim))
        out = scores.softmax(-1).view(-1, c.n_head, length, length) @ v
        return self.attn_output((out.transpose(1, 2) * gate.sigmoid()).flatten(2))

    def routed_experts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows [N, D] -> (the weighted sum of each row's experts, the load-balance loss: 1 when evenly used)."""
        c = self.config
        probability = self.ffn_gate_inp(rows).softmax(-1)
        weight, expert = probability.topk(c.n_expert_used, -1)
        weight = weight / weight.sum(-1, keepdim=True).clamp(min=MIN_ROUTER_WEIGHT_SUM)

        order = expert.flatten().argsort()  # sorted position -> pair
        place = torch.empty_like(order)  # pair -> sorted position
        place[order] = torch.arange(order.numel())
        counts = torch.bincount(expert.flatten(), minlength=c.n_expert)
        pairs = _ExpertFeedForward.apply(
            _Dispatch.apply(rows, order, place, c.n_expert_used),
            self.ffn_gate_exps.weight,
            self.ffn_up_exps.weight,
            self.ffn_down_exps.weight,
            counts.tolist(),
        )
        pairs = pairs * weight.flatten().index_select(0, order).unsqueeze(-1)
        share = counts / counts.sum()
        balance = c.n_expert * (share * probability.mean(0)).sum()
        return _Combine.apply(pairs, order, place, c.n_expert_used), balance

    def shared_expert(self, rows: Tensor) -> Tensor:
        out = self.ffn_down_shexp(F.silu(self.ffn_gate_shexp(rows)) * self.ffn_up_shexp(rows))
        return out * (rows @ self.ffn_gate_inp_shexp.weight).sigmoid().unsqueeze(-1)


class NextToken(nn.Module):
    """What turns a block into the multi-token-prediction block: it joins a hidden state and a token's embedding."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.eh_proj = linear(2 * config.n_embd, config.n_embd)
        self.enorm = Norm(config.n_embd, config.norm_eps)
        self.hnorm = Norm(config.n_embd, config.norm_eps)
        self.shared_head_norm = Norm(config.n_embd, config.norm_eps)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        return self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))


class Model(nn.Module):
    """The whole model. Random weights after construction (seed with torch.manual_seed)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.token_embd = nn.Embedding(config.n_vocab, config.n_embd)
        nn.init.normal_(self.token_embd.weight, std=0.5)
        layers = range(config.n_layer + config.n_layer_nextn)
        self.blk = nn.ModuleList(Block(config, config.is_recurrent(layer)) for layer in layers)
        if config.n_layer_nextn:
            self.blk[config.n_layer].add_module("nextn", NextToken(config))
        self.output_norm = Norm(config.n_embd, config.norm_eps)
        self.output = linear(config.n_embd, config.n_vocab)

    def trunk(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B, T] -> (hidden states after the output norm [B, T, D], mean load-balance loss of the blocks)."""
        x = self.token_embd(tokens)
        balances = []
        for block in self.blk[: self.config.n_layer]:
            x, balance = block(x)
            balances.append(balance)
        return self.output_norm(x), torch.stack(balances).mean()

    def look_ahead(self, hidden: Tensor, next_tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [B, T, D] of positions p and the tokens [B, T] at p + 1.

        Returns (hidden states that predict p + 2, of the same shape, load-balance loss).
        """
        block = self.blk[self.config.n_layer]
        x, balance = block(block.nextn(hidden, self.token_embd(next_tokens)))
        return block.nextn.shared_head_norm(x), balance

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, T, n_vocab]."""
        return self.output(self.trunk(tokens)[0])
