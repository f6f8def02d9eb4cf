"""Witan's default model in PyTorch, for the CPU, written as its users would to be fast; prints the time of a step.

The same mathematics as `witan train`: RMSNorm, grouped-query attention with rotary positions, a dropless top-2 MoE of
SwiGLU experts (softmax over the chosen, balance loss), tied embeddings; clipping and AdamW. Attention is
scaled_dot_product_attention, the experts are grouped_mm over tokens sorted by expert, the optimizer is the fused one.
Tried and not faster: a matrix product per expert on slices, the same written in place, micro-batches of four.
"""
import argparse
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    layers: int = 4
    hidden: int = 256
    heads: int = 4
    groups: int = 2  # key/value heads
    ffn: int = 512
    experts: int = 8  # 0: a dense MLP
    topk: int = 2
    vocab: int = 4096
    seq: int = 256
    batch: int = 8  # sequences of a step


def weight(*shape):
    return nn.Parameter(torch.randn(*shape) * 0.02)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.size = c, c.hidden // c.heads
        self.qkv = weight((c.heads + 2 * c.groups) * self.size, c.hidden)
        self.out = weight(c.hidden, c.hidden)

    def forward(self, x, cos, sin):
        c, (batch, seq, width) = self.c, x.shape
        heads = F.linear(x, self.qkv).view(batch, seq, -1, self.size)
        q, k, v = heads.split([c.heads, c.groups, c.groups], 2)
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).reshape(batch, seq, width), self.out)


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        inner = c.ffn * max(c.topk, 1)  # as many weights as a token visits in the MoE
        self.first, self.second = weight(2 * inner, c.hidden), weight(c.hidden, inner)

    def forward(self, x):
        gate, up = F.linear(x, self.first).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.second), 0.0


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = weight(c.experts, c.hidden)
        self.first, self.second = weight(c.experts, c.hidden, 2 * c.ffn), weight(c.experts, c.ffn, c.hidden)

    def forward(self, x):
        c, shape = self.c, x.shape
        x = x.view(-1, c.hidden)
        logits = F.linear(x, self.router)
        best, ids = logits.topk(c.topk, -1)
        probs, weights = logits.softmax(-1), best.softmax(-1)
        order = ids.view(-1).argsort(stable=True)
        counts = F.one_hot(ids.view(-1), c.experts).sum(0)
        ends = counts.cumsum(0, dtype=torch.int32)
        token = order // c.topk
        gate, up = F.grouped_mm(x[token], self.first, offs=ends).chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up * weights.view(-1)[order].unsqueeze(-1), self.second, offs=ends)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))  # where each copy went
        out = y[back].view(-1, c.topk, c.hidden).sum(1)
        balance = c.experts * (probs.mean(0) * (counts / ids.numel())).sum()
        return out.view(shape), balance


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(c.hidden, 1e-5), nn.RMSNorm(c.hidden, 1e-5)
        self.attention, self.mlp = Attention(c), Moe(c) if c.experts else Mlp(c)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y, balance = self.mlp(self.norm2(x))
        return x + y, balance


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.embedding = c, weight(c.vocab, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.hidden, 1e-5)
        half = c.hidden // c.heads // 2
        angle = torch.outer(torch.arange(c.seq), 10000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angle.cos()[None, :, None])
        self.register_buffer("sin", angle.sin()[None, :, None])

    def forward(self, tokens, targets):
        x, balance = F.embedding(tokens, self.embedding), 0.0
        for block in self.blocks:
            x, one = block(x, self.cos, self.sin)
            balance = balance + one
        logits = F.linear(self.norm(x), self.embedding)
        return F.cross_entropy(logits.view(-1, self.c.vocab), targets.view(-1)) + 0.01 * balance / self.c.layers


class Trainer:
    def __init__(self, config, compiled):
        torch.manual_seed(1)
        self.c, self.model = config, Model(config)
        self.forward = torch.compile(self.model, fullgraph=True) if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3, (0.9, 0.95), weight_decay=0.1, fused=True)

    def step(self):
        tokens = torch.randint(self.c.vocab, (self.c.batch, self.c.seq + 1))
        loss = self.forward(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", type=int, default=8, help="0: the dense model of the same active size")
    parser.add_argument("--compiled", action="store_true", help="torch.compile (inductor) instead of eager")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    trainer = Trainer(Config(experts=args.experts), args.compiled)
    for _ in range(args.warmup):
        trainer.step()
    times = []
    for _ in range(args.steps):
        start = time.perf_counter()
        trainer.step()
        times.append(time.perf_counter() - start)
    print(f"{1e3 * statistics.median(times):.1f}")


if __name__ == "__main__":
    main()
