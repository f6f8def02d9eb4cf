// Runs that sample in every layout and with every kind of layer, or are killed meanwhile.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <sstream>
#include <utility>

#include "support/comes_true.h"
#include "support/model_variants.h"
#include "train/rollouts/rollout_runs.h"

namespace witan::testing {

// Every kind of layer.
inline std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> layer_kinds() {
  std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> all;
  all.emplace_back("experts", [](ModelConfig&) {});
  all.emplace_back("latent attention", [](ModelConfig& model) {
    add_latent_attention(model, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
  });
  all.emplace_back("sparse attention", [](ModelConfig& model) {
    add_latent_attention(model, {.q_rank = 7, .kv_rank = 10, .head = 6, .rotated_head = 4, .value_head = 5});
    add_sparse_attention(model);
  });
  all.emplace_back("windows and sinks", [](ModelConfig& model) { add_gpt_oss_features(model, "6,0"); });
  all.emplace_back("groups of experts", [](ModelConfig& model) { add_grouped_router(model, "[0,1]", 12); });
  all.emplace_back("Gated DeltaNet", [](ModelConfig& model) { add_linear_attention(model); });
  all.emplace_back("Mamba-2", [](ModelConfig& model) { add_hybrid_layers(model); });
  all.emplace_back("compressed attention", [](ModelConfig& model) { add_compressed_attention(model); });
  all.emplace_back("residual streams", [](ModelConfig& model) { add_residual_streams(model); });
  all.emplace_back("short convolutions", [](ModelConfig& model) { add_short_convolutions(model); });
  return all;
}

// Ranks that divide the model sample with the forward that they train with. Where none divides a sum, answers have the
// bits of one rank.
struct ModelLayout {
  const char* name;
  int64_t ranks;
  std::function<void(ParallelConfig&)> change;
  bool same_bits = true, of_experts = false;
};

inline std::vector<ModelLayout> model_layouts() {
  return {
      {"stages", 2, [](ParallelConfig& p) { p.pipeline_model_parallel_size = 2; }},
      {"interleaved", 2,
       [](ParallelConfig& p) { p.pipeline_model_parallel_size = p.num_virtual_stages_per_pipeline_rank = 2; }},
      {"context", 2, [](ParallelConfig& p) { p.context_parallel_size = 2, p.cp_comm_type = "a2a"; }},
      {"context, stages, data", 8,
       [](ParallelConfig& p) { p.context_parallel_size = p.pipeline_model_parallel_size = 2, p.cp_comm_type = "a2a"; }},
      {"context and experts", 2,
       [](ParallelConfig& p) { p.context_parallel_size = p.expert_model_parallel_size = 2, p.cp_comm_type = "a2a"; },
       true, true},
      {"tensor, whole tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2; }, false},
      {"tensor and tokens", 2, [](ParallelConfig& p) { p.tensor_model_parallel_size = 2, p.sequence_parallel = true; },
       false},
      {"tensor, context, data", 8,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.context_parallel_size = 2, p.cp_comm_type = "a2a";
         p.sequence_parallel = true;
       },
       false},
      {"tensor, stages, data", 8,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.pipeline_model_parallel_size = 2, p.sequence_parallel = true;
       },
       false},
      {"tensor and experts", 4,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = p.expert_model_parallel_size = 2, p.sequence_parallel = true;
       },
       false, true},
      {"tensor of experts", 2, [](ParallelConfig& p) { p.expert_tensor_parallel_size = 2; }, false, true},
      {"tensor and sharded parameters", 4,
       [](ParallelConfig& p) {
         p.tensor_model_parallel_size = 2, p.sequence_parallel = true;
         p.data_parallel_sharding_strategy = "optim_grads_params";
       },
       false},
  };
}

class SamplingRuns : public RolloutRuns {
 protected:
  std::vector<Rollout> answers(const std::string& run, int64_t step) const {
    std::vector<Rollout> all;
    std::istringstream lines(rollouts(run, step));
    for (std::string line; std::getline(lines, line);) all.push_back(Rollout::of_line(line, run));
    return all;
  }
  // Rewards differ within groups, so that answers are trained on, and do not depend on the rank that rewards them.
  RunConfig rewarded(const std::string& run) const {
    RunConfig config = sampled(run);
    config.rollout.reward = "command";
    config.rollout.reward_command = "awk '{print length % 5}'";
    return config;
  }
  // Conversations of up to three turns: almost any character ends an answer, and a tool, whose result and reward depend
  // on the line, answers most.
  RunConfig conversing(const std::string& run) const {
    RunConfig config = rewarded(run);
    config.data.seq_length = 112;
    config.rollout.max_turns = 3;
    config.rollout.max_completion_length = 60;
    config.rollout.stop_strings = R"(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q","r","s","t",)"
                                  R"("u","v","w","x","y","z","A","B","C","D","E","F","G","H","I","J","K","L","M","N"])";
    config.rollout.reward_command =
        R"(awk '{ if (length % 4 == 0) print length % 5; else )"
        R"(print "{\"messages\": [{\"role\": \"tool\", \"content\": \"" length % 7 "\"}], \"reward\": " )"
        R"(length % 3 "}" }')";
    return config;
  }
  RunConfig of_layers(const std::string& run, int64_t experts) const { return with_layers(rewarded(run), experts); }
  static RunConfig with_layers(RunConfig config, int64_t experts) {
    config.model.num_layers = 4;
    config.model.moe.num_experts = experts;
    config.model.attention.qk_layernorm = true;
    config.parallel.deterministic = config.parallel.batch_invariant_mode = true;
    config.train.train_iters = 2;
    return config;
  }
  std::optional<RunConfig> laid_out(const RunConfig& config, const ModelLayout& layout) const;
  // The answers of the first step, in order, with what decides whether they are trained on.
  void expect_answers(const std::string& run, const std::string& expected, bool same_bits) const {
    if (same_bits) {
      EXPECT_EQ(rollouts(run, 1), rollouts(expected, 1));
      return;
    }
    const std::vector<Rollout> found = answers(run, 1), wanted = answers(expected, 1);
    ASSERT_EQ(found.size(), wanted.size());
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE(cat("answer ", i));
      EXPECT_EQ(found[i].row, wanted[i].row);
      EXPECT_EQ(found[i].completion, wanted[i].completion);
      EXPECT_EQ(found[i].reward, wanted[i].reward);
      EXPECT_EQ(found[i].replaced, wanted[i].replaced);
      EXPECT_EQ(found[i].discarded, wanted[i].discarded);
      for (size_t t = 0; t < found[i].logprobs.size(); ++t)
        EXPECT_NEAR(found[i].logprobs[t], wanted[i].logprobs[t], 1e-5);
    }
  }
  fs::path unfinished(const std::string& run) const { return folder_ / run / "rollouts/unfinished-0.jsonl"; }

  // Trains in another process, which is killed once the answers that it has written have this many bytes.
  void run_until_killed(const RunConfig& config, uint64_t bytes) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        run(config);
      } catch (...) {
        ::_exit(1);
      }
      ::_exit(0);
    }
    ASSERT_GT(child, 0);
    int status = 0;
    bool ended = false;
    test::comes_true(
        [&] {
          ended = ::waitpid(child, &status, WNOHANG) == child;
          return ended || written(config.train.run) >= bytes;
        },
        600);
    if (ended) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      return;
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  uint64_t written(const std::string& run) const {
    uint64_t bytes = 0;
    std::error_code gone;  // files come and go meanwhile
    for (fs::directory_iterator file(folder_ / run / "rollouts", gone), end; file != end; file.increment(gone)) {
      if (gone) break;
      const auto size = fs::file_size(file->path(), gone);
      if (!gone) bytes += size;
    }
    return bytes;
  }
};

// Nothing if the model has no such layout.
inline std::optional<RunConfig> SamplingRuns::laid_out(const RunConfig& config, const ModelLayout& layout) const {
  const bool has_experts = config.model.moe.num_experts > 0;
  RunConfig other = config;
  other.train.run = cat(layout.name, ", experts ", config.model.moe.num_experts);
  other.parallel.ranks = layout.ranks;
  layout.change(other.parallel);
  const bool whole_tokens = other.parallel.tensor_model_parallel_size > 1 && !other.parallel.sequence_parallel;
  if (has_experts ? whole_tokens : layout.of_experts) return std::nullopt;
  return other;
}

}  // namespace witan::testing
