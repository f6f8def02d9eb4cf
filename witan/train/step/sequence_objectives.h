// Objectives that compare the log probabilities of targets with those under other weights, which come as columns.
#pragma once

#include <memory>

#include "witan/kernels/objective/objective.h"
#include "witan/train/step/objective.h"

namespace witan {

// Columns of these objectives, each with a value for each token.
inline constexpr const char* kAdvantages = "advantages";
inline constexpr const char* kOldLogprobs = "old_logprobs";          // under the weights that ratios are relative to
inline constexpr const char* kRolloutLogprobs = "rollout_logprobs";  // those that the sampler drew with
inline constexpr const char* kRefLogprobs = "ref_logprobs";          // under the reference model

// The logits of which log probabilities are taken, those of a forward divided by the policy's temperature: the sampler
// divides by it too (GenerationMode::temperature), and gets the same bits. Move them in: they are overwritten.
Var tempered(Tape& tape, Var logits, double temperature);

// The clipped surrogate of policy gradients, as config.objective has it: GRPO (arXiv:2402.03300), Dr. GRPO
// (arXiv:2503.20783), DAPO (arXiv:2503.14476) or GSPO (arXiv:2507.18071). Its losses are policy_loss and, with
// kl_loss_coef, kl_loss; further figures, means over tokens, have no coefficient.
std::unique_ptr<Objective> make_policy_objective(const RunConfig& config);

// Direct preference optimisation (arXiv:2305.18290) of rows whose documents 2 i and 2 i + 1 are a chosen and a rejected
// text, as config.objective has it. Its figures are means over pairs.
std::unique_ptr<Objective> make_dpo_objective(const RunConfig& config);
// For programs that make their own batches (Engine::use_objective), which have the column ref_logprobs.
std::unique_ptr<Objective> make_preference_objective(const kernels::PreferenceOptions& options);

}  // namespace witan
