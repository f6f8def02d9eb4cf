"""One training step of the reference models (recipes/reference) as a PyTorch user writes it today.

    python3 bench/peers/torch_step.py                               # MoE reference, one GPU
    python3 bench/peers/torch_step.py --experts 0                   # dense reference
    torchrun --standalone --nproc-per-node 2 bench/peers/torch_step.py   # experts over all ranks, the rest replicated

bfloat16 compute, float32 weights, gradients and moments, fused AdamW, scaled-dot-product attention, dropless experts by
torch._grouped_mm, each block compiled (--eager: not). README.md beside this file lists all settings. Prints one JSON
line: the median of the steps after the first four, in milliseconds.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
DEVICE = torch.device("cuda", RANK)
DTYPE = torch.bfloat16


def arguments():
    parser = argparse.ArgumentParser()
    for name, value in dict(layers=24, hidden=512, heads=4, groups=1, ffn=1792, experts=64, topk=1, vocabulary=128256,
                            sequence=2048, sequences=8, micro_batches=1, steps=12).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--eager", action="store_true")
    return parser.parse_args()


def weight(*shape):
    return nn.Parameter(torch.randn(*shape, device=DEVICE) * 0.02)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=DEVICE))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a, head = a, a.hidden // a.heads
        self.qkv, self.out = weight((a.heads + 2 * a.groups) * head, a.hidden), weight(a.hidden, a.hidden)

    def forward(self, x, cos, sin):
        a, (B, S, D) = self.a, x.shape
        heads = F.linear(x, self.qkv.to(DTYPE)).view(B, S, -1, a.hidden // a.heads)
        q, k, v = heads.split([a.heads, a.groups, a.groups], 2)
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(y.transpose(1, 2).reshape(B, S, D), self.out.to(DTYPE))


class Mlp(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.gate_up, self.down = weight(2 * a.ffn, a.hidden), weight(a.hidden, a.ffn)

    def forward(self, x):
        gate, up = F.linear(x, self.gate_up.to(DTYPE)).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down.to(DTYPE)), x.new_zeros((), dtype=torch.float32)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, received, sent):
        ctx.sizes = received, sent
        y = x.new_empty(sum(received), x.size(1))
        dist.all_to_all_single(y, x.contiguous(), received, sent)
        return y

    @staticmethod
    def backward(ctx, dy):
        received, sent = ctx.sizes
        dx = dy.new_empty(sum(sent), dy.size(1))
        dist.all_to_all_single(dx, dy.contiguous(), sent, received)
        return dx, None, None


@torch.compiler.disable
def exchange(rows, counts, local_experts):
    """Rows to the ranks of their experts, in the order of local experts; the host reads the counts, as in torchtitan."""
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sent, received = torch.stack([counts.view(RANKS, -1).sum(1), theirs.view(RANKS, -1).sum(1)]).tolist()
    arrived = AllToAll.apply(rows, received, sent)
    expert = torch.arange(theirs.numel(), device=DEVICE) % local_experts
    order = torch.repeat_interleave(expert, theirs, output_size=arrived.size(0)).argsort(stable=True)
    ends = theirs.view(RANKS, -1).sum(0).cumsum(0).to(torch.int32)
    return arrived[order], ends, order, (sent, received)


@torch.compiler.disable
def give_back(rows, order, sizes):
    sent, received = sizes
    return AllToAll.apply(torch.empty_like(rows).index_copy(0, order, rows), sent, received)


class Moe(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a, self.local = a, a.experts // RANKS
        self.router = weight(a.experts, a.hidden)
        self.gate_up, self.down = weight(self.local, a.hidden, 2 * a.ffn), weight(self.local, a.ffn, a.hidden)
        self.gate_up.of_expert = self.down.of_expert = True

    def forward(self, x):
        a, shape = self.a, x.shape
        x = x.view(-1, shape[-1])
        probability = F.softmax(F.linear(x, self.router.to(DTYPE)).float(), -1)
        weights, ids = probability.topk(a.topk, -1)
        flat = ids.view(-1)
        ones = torch.ones_like(flat, dtype=torch.int32)
        counts = torch.zeros(a.experts, device=DEVICE, dtype=torch.int32).scatter_add_(0, flat, ones)
        order, ends = flat.argsort(stable=True), counts.cumsum(0).to(torch.int32)
        rows = x[order // a.topk]
        if RANKS > 1:
            rows, ends, arrival, sizes = exchange(rows, counts, self.local)
        gate, up = torch._grouped_mm(rows, self.gate_up.to(DTYPE), offs=ends).chunk(2, -1)
        y = torch._grouped_mm((F.silu(gate) * up).contiguous(), self.down.to(DTYPE), offs=ends)
        if RANKS > 1:
            y = give_back(y, arrival, sizes)
        y = y * weights.view(-1)[order].unsqueeze(-1).to(y.dtype)
        out = torch.zeros_like(x).index_add_(0, order // a.topk, y)
        balance = a.experts * (probability.mean(0) * (counts.float() / flat.numel())).sum()
        return out.view(shape), balance


class Block(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.norm1, self.norm2 = Norm(a.hidden), Norm(a.hidden)
        self.attention, self.mlp = Attention(a), (Moe(a) if a.experts else Mlp(a))

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        y, balance = self.mlp(self.norm2(x))
        return x + y, balance


class Model(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.a = a
        self.embedding, self.head = weight(a.vocabulary, a.hidden), weight(a.vocabulary, a.hidden)
        self.blocks, self.norm = nn.ModuleList(Block(a) for _ in range(a.layers)), Norm(a.hidden)
        head = a.hidden // a.heads
        rates = 100000.0 ** (-torch.arange(0, head, 2, device=DEVICE).float() / head)
        angles = torch.outer(torch.arange(a.sequence, device=DEVICE).float(), rates)
        self.register_buffer("cos", angles.cos().to(DTYPE)[None, :, None])
        self.register_buffer("sin", angles.sin().to(DTYPE)[None, :, None])

    def loss(self, x, targets):
        logits = F.linear(self.norm(x), self.head.to(DTYPE)).float()
        return F.cross_entropy(logits.reshape(-1, self.a.vocabulary), targets.reshape(-1))

    def forward(self, tokens):
        x, balance = F.embedding(tokens[:, :-1], self.embedding).to(DTYPE), 0.0
        for block in self.blocks:
            x, one = block(x, self.cos, self.sin)
            balance = balance + one
        return self.loss(x, tokens[:, 1:]) + 0.01 * balance / self.a.layers


def step(model, optimizer, a):
    for _ in range(a.micro_batches):
        tokens = torch.randint(0, a.vocabulary, (a.sequences, a.sequence + 1), device=DEVICE)
        loss = model(tokens)
        (loss / a.micro_batches).backward()
    if RANKS > 1:
        with dist._coalescing_manager(device=DEVICE):
            for parameter in model.parameters():
                if not hasattr(parameter, "of_expert"):
                    dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss


def main():
    a = arguments()
    torch.cuda.set_device(DEVICE)
    if RANKS > 1:
        dist.init_process_group("nccl", device_id=DEVICE)
    torch.manual_seed(0)
    model = Model(a)
    if not a.eager:
        for i, block in enumerate(model.blocks):
            model.blocks[i] = torch.compile(block)
        model.loss = torch.compile(model.loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    times = []
    for _ in range(a.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loss = step(model, optimizer, a)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    if RANK == 0:
        print(json.dumps({"peer": f"PyTorch {torch.__version__}" + (" eager" if a.eager else ""), "ranks": RANKS,
                          "ms": round(sorted(times[4:])[len(times[4:]) // 2], 2), "loss": round(loss.item(), 3),
                          "GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)}), flush=True)
    if RANKS > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
