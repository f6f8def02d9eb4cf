"""Writes policy.json and preference.json: losses and gradients of TRL's GRPO and DPO in their variants, in float64.

    pip install trl; python make_golden.py    (TRL 1.16.0)

TRL's own _compute_loss() of GRPOTrainer and DPOTrainer runs on given log probabilities. Everything that Witan reads as a column is
representable in float32.
"""

import json
import pathlib
import types
from collections import defaultdict

import torch
import torch.nn.functional as F
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer

HERE = pathlib.Path(__file__).parent
B, T = 4, 7
LENGTHS = [7, 3, 1, 5]


def normal(generator, *shape, scale=1.0):
    return (torch.randn(*shape, generator=generator) * scale).double()


def policy_case(columns, logprobs, loss_type, level, beta, low, high, cap, divisor):
    logprobs = logprobs.clone().requires_grad_()
    mask = columns["mask"]
    accelerator = types.SimpleNamespace(
        num_processes=1, gather=lambda x: x, gather_for_metrics=lambda x: x, reduce=lambda x, reduction: x
    )
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level=level,
        beta=beta,
        loss_type=loss_type,
        epsilon_low=low,
        epsilon_high=high,
        use_vllm=cap > 0,
        vllm_importance_sampling_correction=cap > 0,
        model=types.SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=divisor,
        accelerator=accelerator,
        _entropy_bonus_enabled=False,
        args=types.SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ratio = torch.exp(columns["old_logprobs"] - columns["rollout_logprobs"])
    empty = torch.zeros(B, 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros(B, T, dtype=torch.long),
        "completion_mask": mask,
        "advantages": columns["advantages"][:, 0],
        "old_per_token_logps": columns["old_logprobs"],
        "ref_per_token_logps": columns["ref_logprobs"],
        "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": torch.clamp(ratio, max=cap),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    loss.backward()
    metrics = trainer._metrics["train"]
    return {
        "loss_type": loss_type,
        "level": level,
        "kl_loss_coef": beta,
        "clip_ratio_low": low,
        "clip_ratio_high": high,
        "importance_sampling_cap": cap,
        "loss_scale_factor": divisor,
        "loss": loss.item(),
        "gradient": logprobs.grad.flatten().tolist(),
        # TRL averages over sequences where a sequence has one ratio.
        **(
            {
                "clip_fraction_low": metrics["clip_ratio/low_mean"][0],
                "clip_fraction_high": metrics["clip_ratio/high_mean"][0],
            }
            if level == "token"
            else {}
        ),
    }


def preference_case(columns, logprobs, loss_type, beta, smoothing, sft_weight, with_reference):
    """TRL's own DPOTrainer._compute_loss() on given log probabilities, a pair at a time: its SFT term is a mean over the
    tokens of a batch, and the paper's (arXiv:2404.19733) one over those of a text."""
    given = logprobs.clone().requires_grad_()
    mask = columns["mask"]
    reference = columns["ref_logprobs"] if with_reference else torch.zeros_like(mask)
    total, found = 0.0, defaultdict(list)
    for pair in range(B // 2):
        rows = [2 * pair, 2 * pair + 1]
        own = given[rows] * mask[rows]
        sums = (reference[rows] * mask[rows]).sum(1)
        none = torch.zeros_like(own)  # figures that are not compared
        output = types.SimpleNamespace(log_probs=own, entropy=none, mean_logits=none, is_top1=none.bool())
        # The first token of a text is a prompt's: no log probability is its.
        completions = F.pad(mask[rows], (1, 0))
        accelerator = types.SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x)
        trainer = types.SimpleNamespace(
            model=types.SimpleNamespace(training=True),
            accelerator=accelerator,
            aux_loss_enabled=False,
            ld_alpha=None,
            precompute_ref_logps=True,
            f_divergence_type="reverse_kl",
            beta=beta,
            label_smoothing=smoothing,
            loss_types=[loss_type] + (["sft"] if sft_weight > 0 else []),
            loss_weights=[1.0] + ([sft_weight] if sft_weight > 0 else []),
            use_weighting=False,
            _total_train_tokens=0,
            _tp_size=1,
            _metrics=defaultdict(lambda: defaultdict(list)),
        )
        inputs = {
            "input_ids": torch.zeros_like(completions, dtype=torch.long),
            "attention_mask": torch.ones_like(completions),
            "completion_mask": completions.long(),
            "ref_chosen_logps": sums[:1],
            "ref_rejected_logps": sums[1:],
        }
        total = total + DPOTrainer._compute_loss(trainer, FixedOutput(output), inputs, False) / (B // 2)
        for name, values in trainer._metrics["train"].items():
            found[name] += values
    total.backward()
    mean = lambda name: sum(found[name]) / len(found[name])
    return {
        "loss_type": loss_type,
        "beta": beta,
        "label_smoothing": smoothing,
        "sft_weight": sft_weight,
        "with_reference": with_reference,
        "loss": total.item(),
        "accuracy": mean("rewards/accuracies"),
        "margin": mean("rewards/margins"),
        "chosen": mean("rewards/chosen"),
        "rejected": mean("rewards/rejected"),
        "gradient": given.grad.flatten().tolist(),
    }


class FixedOutput:
    """Returns the given output, whatever it is called with."""

    def __init__(self, output):
        self.output = output

    def __call__(self, **inputs):
        return self.output


def smoothed_case(columns, logprobs, beta, smoothing):
    """Conservative DPO (arXiv:2403.00409, equation 3), which TRL no longer has."""
    given = logprobs.clone().requires_grad_()
    rewards = beta * ((given - columns["ref_logprobs"]) * columns["mask"]).sum(1)
    z = rewards[0::2] - rewards[1::2]
    loss = (-(1 - smoothing) * F.logsigmoid(z) - smoothing * F.logsigmoid(-z)).mean()
    loss.backward()
    return {
        "loss_type": "sigmoid",
        "beta": beta,
        "label_smoothing": smoothing,
        "sft_weight": 0.0,
        "with_reference": True,
        "loss": loss.item(),
        "accuracy": (z > 0).double().mean().item(),
        "margin": z.mean().item(),
        "chosen": rewards[0::2].mean().item(),
        "rejected": rewards[1::2].mean().item(),
        "gradient": given.grad.flatten().tolist(),
    }


def main():
    generator = torch.Generator().manual_seed(7)
    mask = torch.tensor([[t < length for t in range(T)] for length in LENGTHS]).double()
    logprobs = -normal(generator, B, T).abs()
    near = lambda scale: (logprobs + normal(generator, B, T, scale=scale)).float().double()
    columns = {
        "mask": mask,
        "old_logprobs": near(0.3),
        "rollout_logprobs": near(0.3),
        "ref_logprobs": near(0.5),
        "advantages": normal(generator, B, 1).float().double().expand(B, T),
    }
    cases = [
        policy_case(columns, logprobs, *case)
        for case in [
            ("grpo", "token", 0.0, 0.2, 0.2, 0.0, 16),
            ("grpo", "token", 0.04, 0.2, 0.28, 0.0, 16),
            ("dr_grpo", "token", 0.0, 0.1, 0.1, 0.0, 16),
            ("dapo", "token", 0.0, 0.2, 0.28, 0.0, 16),
            ("dapo", "token", 0.1, 0.2, 0.2, 1.25, 16),
            ("grpo", "sequence", 0.0, 0.03, 0.04, 0.0, 16),
            ("dapo", "sequence", 0.02, 0.2, 0.2, 1.5, 16),
        ]
    ]
    written = {name: values.flatten().tolist() for name, values in columns.items()}
    policy = {"rows": B, "tokens": T, "logprobs": logprobs.flatten().tolist(), **written, "cases": cases}
    (HERE / "policy.json").write_text(json.dumps(policy, indent=1) + "\n")

    pairs = [
        preference_case(columns, logprobs, *case)
        for case in [
            ("sigmoid", 0.1, 0.0, 0.0, True),
            ("sigmoid", 0.5, 0.0, 0.0, False),
            ("sigmoid_norm", 2.0, 0.0, 0.0, True),
            ("robust", 0.5, 0.1, 0.0, True),
            ("hinge", 0.5, 0.0, 0.0, True),
            ("ipo", 0.3, 0.0, 0.0, True),
            ("sigmoid", 0.5, 0.0, 0.7, True),
        ]
    ]
    pairs.append(smoothed_case(columns, logprobs, 0.5, 0.1))
    (HERE / "preference.json").write_text(json.dumps({"cases": pairs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
