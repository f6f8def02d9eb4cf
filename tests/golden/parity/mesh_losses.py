#!/usr/bin/env python3
"""The program behind tests/parity/mesh_test.cpp on one CPU: prints the losses of its third column.

Run with torch 2.15 on a CPU; about a minute and 4 GB.
"""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, WIDTH, HEADS, LAYERS, FFN = 50257, 1024, 8, 4, 4096
TOKENS = torch.tensor([[72, 1842, 18459, 6413, 290, 513, 67, 10730, 1042, 14373]])


def rotate(x):  # [B, S, heads, dim], neighbouring channels are pairs
    dim, positions = x.shape[3], torch.arange(x.shape[1]).float()
    angles = torch.outer(positions, 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
    turned = torch.view_as_complex(x.unflatten(3, (-1, 2))) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(turned).flatten(3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(FFN, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (proj(h).unflatten(2, (HEADS, -1)) for proj in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in (rotate(q), rotate(k), v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH, bias=False), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.wte(tokens))))


torch.manual_seed(1234)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
for step in range(6):
    loss = F.cross_entropy(model(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten())
    print(step, f"{loss.item():.6f}")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
