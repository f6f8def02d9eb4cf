"""A layer of SwiGLU experts, its routing given, forward and backward, by other software on one GPU.

    python3 bench/peers/moe_layer.py [--peers gather,scatter,sonic] T,d,n,E,K ...

gather   torch._grouped_mm, compiled; rows moved by gathers both ways
scatter  ScatterMoE's GLUMLP
sonic    SonicMoE's own autograd functions, its kernels of metadata included (packages sonic-moe, quack-kernels,
         nvidia-cutlass-dsl; it compiles and tunes for minutes: keep QUACK_CACHE_DIR)

Each peer runs in a process of its own, so that one that crashes does not stop the rest. Output and all gradients are
held against a loop over experts in float32 before anything is timed. FLOPs are those of the experts' products, 6 T K d n
forward and three times that with the backward. Times are of CUDA graphs replayed back to back, as `witan bench moe-layer`
has them, or of eager launches where those are faster or cannot be captured. One JSON line for a peer and shape.
"""
import argparse
import json
import os
import subprocess
import sys
import traceback


def reference(torch, x, gate, up, down, p, ids, dy):
    """Output and gradients in float32, one expert after the other."""
    X, DY, P = x.float(), dy.float(), p.float()
    y, dx, dp = torch.zeros_like(X), torch.zeros_like(X), torch.zeros_like(P)
    dgate, dup, ddown = (torch.zeros_like(w) for w in (gate, up, down))
    for e in range(gate.size(0)):
        t, k = (ids == e).nonzero(as_tuple=True)
        if t.numel() == 0:
            continue
        G, U, D, rows, weight = gate[e].float(), up[e].float(), down[e].float(), X[t], P[t, k][:, None]
        g, u = rows @ G.T, rows @ U.T
        sigmoid = torch.sigmoid(g)
        silu = g * sigmoid
        h = silu * u
        out, dout = h @ D.T, DY[t]
        y.index_add_(0, t, out * weight)
        dp[t, k] = (dout * out).sum(1)
        dout = dout * weight
        dh = dout @ D
        du, dg = dh * silu, dh * u * (sigmoid * (1 + g * (1 - sigmoid)))
        ddown[e], dgate[e], dup[e] = dout.T @ h, dg.T @ rows, du.T @ rows
        dx.index_add_(0, t, dg @ G + du @ U)
    return y, dx, dgate, dup, ddown, dp


def leaf(t):
    return t.detach().clone().contiguous().requires_grad_()


# Each: (torch, x, gate, up, down, p, ids) -> (forward, leaves, gradients in the reference's order)


def gather_peer(torch, x, gate, up, down, p, ids):
    import torch.nn.functional as F
    (E, n, _), (T, K) = gate.shape, ids.shape
    x, w13, w2, p = leaf(x), leaf(torch.cat([gate, up], 1)), leaf(down), leaf(p)

    class Rows(torch.autograd.Function):
        """A gather whose gradient is a gather too."""

        @staticmethod
        def forward(ctx, a, source, back, fan):
            ctx.save_for_backward(back)
            ctx.fan = fan
            return a[source]

        @staticmethod
        def backward(ctx, g):
            rows = g[ctx.saved_tensors[0]]
            return (rows if ctx.fan == 1 else rows.view(-1, ctx.fan, rows.size(1)).sum(1)), None, None, None

    def layer(x, w13, w2, p):
        flat = ids.view(-1)
        ones = torch.ones_like(flat, dtype=torch.int32)
        counts = torch.zeros(E, device=x.device, dtype=torch.int32).scatter_add_(0, flat, ones)
        order, ends = flat.argsort(stable=True), counts.cumsum(0).to(torch.int32)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
        g, u = torch._grouped_mm(Rows.apply(x, order // K, inverse, K), w13.transpose(1, 2), offs=ends).chunk(2, -1)
        y = torch._grouped_mm((F.silu(g) * u).contiguous(), w2.transpose(1, 2), offs=ends)
        y = Rows.apply(y, inverse, order, 1).view(T, K, -1)
        return (y * p.unsqueeze(-1).to(y.dtype)).sum(1)

    compiled = torch.compile(layer)
    return (lambda: compiled(x, w13, w2, p)), [x, w13, w2, p], lambda: (
        x.grad, w13.grad[:, :n], w13.grad[:, n:], w2.grad, p.grad)


def scatter_peer(torch, x, gate, up, down, p, ids):
    from scattermoe.mlp import GLUMLP
    (E, n, d), K = gate.shape, ids.size(1)
    layer = GLUMLP(d, n, E, K).to(device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        layer.experts.weight.copy_(torch.cat([up, gate], 1))
        layer.output_experts.weight.copy_(down)
    x, p = leaf(x), leaf(p.to(torch.bfloat16))

    def gradients():
        first = layer.experts.weight.grad
        return x.grad, first[:, n:], first[:, :n], layer.output_experts.weight.grad, p.grad

    return (lambda: layer(x, p, ids)), [x, p, *layer.parameters()], gradients


def sonic_peer(torch, x, gate, up, down, p, ids):
    from sonicmoe.enums import ActivationType
    from sonicmoe.functional import TC_topk_router_metadata_triton, _DownProjection, _UpProjection
    (E, n, d), (T, K) = gate.shape, ids.shape
    w1 = leaf(torch.stack([gate, up], 2).view(E, 2 * n, d))  # rows gate 0, up 0, gate 1, ...
    w2, x, s, ids = leaf(down), leaf(x), leaf(p.float()), ids.to(torch.int32).contiguous()

    def forward():
        scatter, reverse, gather, counts, ends = (torch.empty(size, dtype=torch.int32, device="cuda")
                                                  for size in (T * K, T * K, T * K, E, E + 1))
        TC_topk_router_metadata_triton(ids, E, counts, ends, gather, scatter, reverse)
        y, h = _UpProjection.apply(x, w1.permute(1, 2, 0), None, ends, T * K, K, gather, scatter, reverse, None, False,
                                   ActivationType.SWIGLU, False, False)
        return _DownProjection.apply(y, h, w2.permute(1, 2, 0), None, s, ends, T, K, gather, scatter, reverse, None,
                                     False, ActivationType.SWIGLU)

    def gradients():
        first = w1.grad.view(E, n, 2, d)
        return x.grad, first[:, :, 0], first[:, :, 1], w2.grad, s.grad

    return forward, [x, w1, w2, s], gradients


PEERS = {"gather": gather_peer, "scatter": scatter_peer, "sonic": sonic_peer}


def capture(torch, body):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            body()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def back_to_back(torch, body, milliseconds=150):
    """Milliseconds of one call, of many queued one after the other; the median of five runs."""

    def run(calls):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            body()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / calls

    run(3)
    calls = max(3, int(milliseconds / max(run(3), 1e-3)))
    return sorted(run(calls) for _ in range(5))[2]


def measure(torch, make, shape):
    from triton.testing import do_bench
    T, d, n, E, K = shape
    torch._dynamo.reset()
    torch.manual_seed(0)

    def normal(*size, scale=1.0):
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16) * scale

    x, dy = normal(T, d), normal(T, d)
    gate, up, down = normal(E, n, d, scale=0.02), normal(E, n, d, scale=0.02), normal(E, d, n, scale=0.02)
    p, ids = torch.randn(T, E, device="cuda").topk(K, -1)
    p, ids = p.softmax(-1) * (1 if K > 1 else 0.7), ids.contiguous()
    forward, leaves, gradients = make(torch, x, gate, up, down, p, ids)

    def both():
        for one in leaves:
            one.grad = None
        forward().backward(dy)

    both()
    wanted = reference(torch, x, gate, up, down, p, ids, dy)
    errors = [((a.float() - b.float()).norm() / b.float().norm()).item()
              for a, b in zip((forward().detach(), *gradients()), wanted)]
    del wanted
    torch.cuda.empty_cache()
    times = {}
    for name, body in (("forward", forward), ("both", both)):
        times[name] = do_bench(body, warmup=50, rep=200, return_mode="median")
        for one in leaves:
            one.grad = None
        try:
            times[name] = min(times[name], back_to_back(torch, capture(torch, body).replay))
        except RuntimeError:  # what synchronises cannot be captured
            torch.cuda.synchronize()
    tera = 6e-9 * T * K * d * n
    return {"right": all(error < 0.02 for error in errors), "forward_ms": round(times["forward"], 4),
            "ms": round(times["both"], 4), "forward_tflops": round(tera / times["forward"]),
            "tflops": round(3 * tera / times["both"])}


def child(peer, shapes):
    import torch
    for shape in shapes:
        try:
            print(json.dumps({"shape": shape, "peer": peer, **measure(torch, PEERS[peer], list(map(int, shape.split(","))))}),
                  flush=True)
        except Exception:
            traceback.print_exc()
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--limit", type=int, default=470, help="seconds for a peer")
    parser.add_argument("--child")
    parser.add_argument("shapes", nargs="+")
    a = parser.parse_args()
    if a.child:
        return child(a.child, a.shapes)
    for peer in a.peers.split(","):
        try:
            subprocess.run([sys.executable, os.path.abspath(__file__), "--child", peer, *a.shapes], timeout=a.limit)
        except subprocess.TimeoutExpired:
            print(f"{peer}: stopped after {a.limit} s", file=sys.stderr)


if __name__ == "__main__":
    main()
