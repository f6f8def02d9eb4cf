"""Decoding, and a step of GRPO, with layers of Qwen3-30B-A3B in Hugging Face Transformers.

    python3 bench/peers/hf_rl.py --layers 12 --decode 1,8,32           # milliseconds a token of that many texts
    python3 bench/peers/hf_rl.py --layers 6 --step 16,8,512,256        # prompts, answers to each, tokens of both

bfloat16, random weights and tokens. Texts are sampled by `generate`, at temperature 1 with a static cache. A step
samples the answers, gives half of each group reward 1, and trains on the clipped ratios of all answers' tokens, as TRL's
GRPOTrainer does with one update a batch: log probabilities of --mbs rows at a time, gradients added up, fused AdamW. A
warm-up precedes what is measured. Prints one JSON line for each measurement.
"""
import argparse
import json
import time

import torch
import transformers

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, size in dict(layers=12, hidden=2048, heads=32, kv=4, head=128, ffn=768, experts=128, topk=8, vocab=151936,
                       mbs=4, tokens=32).items():
    parser.add_argument("--" + name, type=int, default=size)
parser.add_argument("--decode", default="", help="numbers of texts at a time")
parser.add_argument("--step", default="", help="prompts,answers to each,tokens of a prompt,tokens of an answer")
parser.add_argument("--impl", default="grouped_mm", help="how the experts are computed")
parser.add_argument("--device", default="cuda")
a = parser.parse_args()

torch.manual_seed(0)
config = transformers.Qwen3MoeConfig(
    vocab_size=a.vocab, hidden_size=a.hidden, intermediate_size=a.ffn, moe_intermediate_size=a.ffn,
    num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.kv, head_dim=a.head,
    max_position_embeddings=4096, num_experts=a.experts, num_experts_per_tok=a.topk, norm_topk_prob=True,
    tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=0)
with torch.device(a.device):
    model = transformers.Qwen3MoeForCausalLM._from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation=a.impl)
synchronize = torch.cuda.synchronize if a.device == "cuda" else (lambda: None)


def timed(work):
    synchronize()
    start = time.perf_counter()
    result = work()
    synchronize()
    return time.perf_counter() - start, result


@torch.no_grad()
def sample(prompts, tokens):
    return model.generate(prompts, do_sample=True, top_k=0, max_new_tokens=tokens, min_new_tokens=tokens,
                          cache_implementation="static", disable_compile=True)


def report(**figures):
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 1) if a.device == "cuda" else None
    print(json.dumps({"peer": f"transformers {transformers.__version__}, {a.impl}", "layers": a.layers, **figures,
                      "peak_GiB": peak}), flush=True)


def decode(texts):
    prompts = torch.randint(1, a.vocab, (texts, 512), device=a.device)
    sample(prompts, 2)
    short, _ = timed(lambda: sample(prompts, 2))
    long, _ = timed(lambda: sample(prompts, 2 + a.tokens))
    report(texts=texts, ms_token=round(1e3 * (long - short) / a.tokens, 2),
           tokens_s=round(texts * a.tokens / (long - short), 1))


def log_probabilities(rows, first):
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits[:, first - 1:].float()
    return torch.log_softmax(logits, -1).gather(-1, rows[:, first:, None])[..., 0]


def train(optimizer, rows, first, advantages):
    for at in range(0, len(rows), a.mbs):
        chosen = log_probabilities(rows[at:at + a.mbs], first)
        ratio = torch.exp(chosen - chosen.detach())
        advantage = advantages[at:at + a.mbs, None]
        loss = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean(1).sum() / len(rows)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def step(prompts, answers, first, tokens):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    texts = torch.randint(1, a.vocab, (prompts, first), device=a.device).repeat_interleave(answers, 0)
    advantages = torch.tensor([1.0, -1.0], device=a.device).repeat(len(texts) // 2)
    warm = sample(texts[:a.mbs], 2)
    train(optimizer, warm, first, advantages[:len(warm)])
    sampling, rows = timed(lambda: sample(texts, tokens))
    training, _ = timed(lambda: train(optimizer, rows, first, advantages))
    report(rows=len(rows), prompt=first, answer=tokens, s_step=round(sampling + training, 2),
           s_sampling=round(sampling, 2), s_training=round(training, 2))


model.eval()
for count in filter(None, a.decode.split(",")):
    decode(int(count))
if a.step:
    step(*map(int, a.step.split(",")))
