"""One training step of Qwen3's MoE layers in torchtitan 0.2.2: its own Trainer, Qwen3 model and settings for speed.

    python3 bench/peers/titan_step.py --layers 6                                       # one GPU
    torchrun --standalone --nproc-per-node 2 bench/peers/titan_step.py --layers 12     # FSDP; experts over all ranks

Compiled model and loss, no activation checkpoints, fused AdamW, float32 parameters, bfloat16 compute, random tokens and
weights; it has no auxiliary loss. The sizes are those of recipes/presets/qwen3-30b-a3b.toml but for the number of
layers. Prints one JSON line.
"""
import argparse
import importlib.machinery
import json
import os
import sys
import tempfile
import time
import types

for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29541").items():
    os.environ.setdefault(key, value)


def stand_in(name, **attributes):
    """A package that torchtitan imports and this run does not use."""
    try:
        __import__(name)
    except ImportError:
        module = types.ModuleType(name)
        module.__dict__.update(attributes)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module


stand_in("datasets", Dataset=object, load_dataset=None)
stand_in("datasets.distributed", split_dataset_by_node=None)
stand_in("torchdata")
stand_in("torchdata.stateful_dataloader", StatefulDataLoader=type("StatefulDataLoader", (), {}))
stand_in("torch.utils.tensorboard", SummaryWriter=None)
stand_in("tyro")
stand_in("tokenizers", AddedToken=object, Tokenizer=object)

SIZES = dict(layers=6, hidden=2048, heads=32, kv=4, head=128, ffn=768, experts=128, topk=8, vocab=151936, seq=4096,
             mbs=4, accumulate=1, steps=14)

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for name, default in SIZES.items():
    parser.add_argument("--" + name, type=int, default=default)
parser.add_argument("--ep", type=int, default=0, help="expert parallelism; 0: all ranks")
parser.add_argument("--eager", action="store_true")
a = parser.parse_args()

import torch  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.models.moe import MoEArgs  # noqa: E402
from torchtitan.models.qwen3 import Qwen3ModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

world = int(os.environ["WORLD_SIZE"])
sizes = Qwen3ModelArgs(
    dim=a.hidden, n_layers=a.layers, n_heads=a.heads, n_kv_heads=a.kv, vocab_size=a.vocab, head_dim=a.head,
    hidden_dim=a.ffn, norm_eps=1e-6, rope_theta=1000000, qk_norm=True, max_seq_len=a.seq, moe_enabled=True,
    moe_inter_dim=a.ffn,
    moe_args=MoEArgs(num_experts=a.experts, num_shared_experts=0, top_k=a.topk, score_func="softmax", route_norm=True,
                     score_before_experts=False, load_balance_coeff=None))


class RandomTokens:
    def __init__(self, **_):
        self.generator = torch.Generator().manual_seed(1 + int(os.environ["RANK"]))

    def __iter__(self):
        while True:
            tokens = torch.randint(0, a.vocab, (a.mbs, a.seq + 1), generator=self.generator)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, _):
        pass


spec = get_train_spec()
spec.model_args, spec.build_dataloader_fn = {"block": sizes}, RandomTokens
spec.build_tokenizer_fn, spec.state_dict_adapter = None, None
register_train_spec("block", spec)

job = JobConfig()
job.job.dump_folder = os.path.join(tempfile.gettempdir(), "titan")
job.model.name, job.model.flavor = "block", "block"
job.training.local_batch_size, job.training.seq_len = a.mbs, a.seq
job.training.global_batch_size = a.mbs * a.accumulate * world
job.training.steps, job.training.max_norm = a.steps, 1.0
job.optimizer.lr, job.optimizer.implementation = 3e-4, "fused"
job.lr_scheduler.warmup_steps = 2
job.metrics.log_freq = 10**6
job.activation_checkpoint.mode = "none"
job.compile.enable, job.compile.components = not a.eager, ["model", "loss"]
job.parallelism.data_parallel_shard_degree, job.parallelism.fsdp_reshard_after_forward = -1, "never"
job.parallelism.expert_parallel_degree = (a.ep or world) if world > 1 else 1

times, losses = [], []


class Timed(Trainer):
    def forward_backward_step(self, **arguments):
        loss = super().forward_backward_step(**arguments)
        losses.append(loss.detach())
        return loss

    def train_step(self, iterator):
        torch.cuda.synchronize()
        start = time.perf_counter()
        super().train_step(iterator)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)


trainer = Timed(job)
trainer.train()
median = sorted(times[4:])[len(times[4:]) // 2]
if int(os.environ["RANK"]) == 0:
    print(json.dumps({
        "peer": f"torchtitan 0.2.2, torch {torch.__version__}, " + ("eager" if a.eager else "compiled"), "ranks": world,
        "layers": a.layers, "parameters_B": round(sum(p.numel() for p in trainer.model_parts[0].parameters()) / 1e9, 3),
        "tokens": a.accumulate * a.mbs * a.seq, "ms_step": round(median, 1),
        "ktok_s_gpu": round(a.accumulate * a.mbs * a.seq / median, 1),
        "losses": [round(float(loss) * world, 3) for loss in (losses[0], losses[-1])],
        "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1)}), flush=True)
trainer.close()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
