#!/usr/bin/env python3
"""Writes the .tsv files beside this script with the original implementations of schedules, optimizers and step skipping.

Made with Python 3.11, torch 2.15.0, megatron-core 0.16.1, lion-pytorch 0.2.5, ai2-olmo-core 3.0.0 and
pytorch/ademamix.py of github.com/apple/ml-ademamix at c3d73c0, whose folder is the argument. All in float64.
"""
import importlib.util
import math
import pathlib
import sys
from unittest import mock

import torch

HERE = pathlib.Path(__file__).parent


def load(name, path):
    """A module alone, without the package that it is in and what that imports."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(*parts):
    return next(path for folder in sys.path if (path := pathlib.Path(folder).joinpath(*parts)).is_file())


def write(name, header, rows):
    lines = ["\t".join(header)] + ["\t".join(repr(v) if isinstance(v, float) else str(v) for v in row) for row in rows]
    (HERE / name).write_text("\n".join(lines) + "\n")


def schedules():
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    for style, warmup, end, decay in [("constant", 10, 100, 0), ("linear", 10, 100, 0), ("cosine", 0, 90, 0),
                                      ("inverse-square-root", 10, 100, 0), ("inverse-square-root", 0, 50, 0),
                                      ("WSD", 10, 100, 30), ("WSD", 0, 64, 64)]:
        for wsd_style in ["linear", "cosine", "exponential", "minus_sqrt"] if decay else ["exponential"]:
            group = {"lr": 0.0}
            scheduler = OptimizerParamScheduler(
                mock.Mock(param_groups=[group]), init_lr=0.0, max_lr=3e-3, min_lr=2e-4, lr_warmup_steps=warmup,
                lr_decay_steps=end, lr_decay_style=style, start_wd=0.0, end_wd=0.0, wd_incr_steps=1,
                wd_incr_style="constant", use_checkpoint_opt_param_scheduler=False, wsd_decay_steps=decay or None,
                lr_wsd_decay_style=wsd_style)
            for step in range(0, end + 10, 3):
                scheduler.num_steps = step
                yield style, wsd_style, warmup, end, decay, step, float(scheduler.get_lr(group))


def weight_decays():
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    for style, start, end in [("constant", 0.1, 0.1), ("linear", 0.0, 0.1), ("linear", 0.05, 0.2), ("cosine", 0.01, 0.1)]:
        scheduler = OptimizerParamScheduler(
            mock.Mock(param_groups=[{"lr": 0.0}]), init_lr=0.0, max_lr=3e-3, min_lr=2e-4, lr_warmup_steps=0,
            lr_decay_steps=60, lr_decay_style="constant", start_wd=start, end_wd=end, wd_incr_steps=60,
            wd_incr_style=style, use_checkpoint_opt_param_scheduler=False)
        for step in range(0, 66, 3):
            scheduler.num_steps = step
            yield style, start, end, step, float(scheduler.get_wd())


def scheduled_updates():
    """As train_step() of megatron/training/training.py: the scheduler steps after the optimizer, if that updated."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    batch = 8
    for style, warmup, init, decay in [("constant", 4, 0.0, 0), ("linear", 0, 0.0, 0), ("linear", 3, 5e-4, 0),
                                       ("cosine", 5, 0.0, 0), ("inverse-square-root", 4, 1e-3, 0),
                                       ("WSD", 2, 0.0, 6)]:
        group = {"lr": 0.0}
        scheduler = OptimizerParamScheduler(
            mock.Mock(param_groups=[group]), init_lr=init, max_lr=3e-3, min_lr=2e-4, lr_warmup_steps=warmup * batch,
            lr_decay_steps=14 * batch, lr_decay_style=style, start_wd=0.0, end_wd=0.0, wd_incr_steps=1,
            wd_incr_style="constant", use_checkpoint_opt_param_scheduler=False, wsd_decay_steps=decay * batch or None,
            lr_wsd_decay_style="linear")
        for iteration in range(1, 21):
            skipped, used = iteration in (2, 9, 10), float(group["lr"])
            if not skipped:
                scheduler.step(increment=batch)
            yield style, warmup, init, 14, decay, iteration, int(skipped), used, float(group["lr"])


def gradient(step, n):
    return torch.tensor([math.sin(3.7 * step + 1.3 * i) * (1 + i) for i in range(n)], dtype=torch.float64)


def updates(ademamix):
    from lion_pytorch import Lion

    kinds = {
        "lion": lambda p: Lion(p, lr=1e-2, betas=(0.9, 0.99), weight_decay=0.1),
        "ademamix": lambda p: ademamix.AdEMAMix(p, lr=1e-2, betas=(0.9, 0.95, 0.999), alpha=5.0, weight_decay=0.1),
        "ademamix_warmup": lambda p: ademamix.AdEMAMix(p, lr=1e-2, betas=(0.9, 0.95, 0.999), alpha=5.0,
                                                      beta3_warmup=20, alpha_warmup=20, weight_decay=0.1),
    }
    for name, make in kinds.items():
        p = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.0, 1.5], dtype=torch.float64))
        optimizer = make([p])
        for step in range(1, 31):
            p.grad = gradient(step, 5)
            optimizer.step()
            yield name, step, *p.detach().tolist()


def skipped_steps():
    # Alone: its package imports much that it does not need.
    utils = mock.Mock(get_default_device=lambda: torch.device("cpu"), move_to_device=lambda tensor, device: tensor)
    with mock.patch.dict(sys.modules, {"olmo_core": mock.Mock(), "olmo_core.utils": utils}):
        olmo = load("skip_step_optimizer", installed("olmo_core", "optim", "skip_step_optimizer.py"))
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = olmo.SkipStepOptimizer([p], {}, rolling_interval_length=8, sigma_factor=2)
    for step in range(1, 61):
        loss, norm = 2 + math.sin(step) / 4, 1 + math.cos(1.7 * step) / 3
        if step in (3, 11, 12, 30):
            norm += 4
        if step in (20, 30, 41):
            loss += 3
        optimizer.latest_loss = torch.tensor(loss, dtype=torch.float64)
        optimizer.latest_grad_norm = torch.tensor(norm, dtype=torch.float64)
        yield step, loss, norm, int(optimizer.get_step_factor().item() == 0)


write("lr_schedule.tsv", ["style", "wsd_style", "warmup", "end", "wsd_iters", "iteration", "lr"], schedules())
write("weight_decay.tsv", ["style", "start", "end", "iteration", "weight_decay"], weight_decays())
write("scheduled_updates.tsv",
      ["style", "warmup", "warmup_init", "end", "wsd_iters", "iteration", "skipped", "used", "printed"],
      scheduled_updates())
write("updates.tsv", ["optimizer", "step", "p0", "p1", "p2", "p3", "p4"],
      updates(load("ademamix", pathlib.Path(sys.argv[1]) / "ademamix.py")))
write("skip_step.tsv", ["step", "loss", "norm", "skipped"], skipped_steps())
