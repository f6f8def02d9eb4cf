#include "witan/train/config/resolve.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/comm/peers/host_identity.h"
#include "witan/parallel/context_heads.h"
#include "witan/tensor/cuda.h"
#include "witan/train/config/idle_keys.h"
#include "witan/train/config/trained_parameters.h"

namespace witan {
namespace {

constexpr int64_t kBytes = 256;  // entries that every tokenizer has

// How many prompts a step answers; 0: it samples none, or not whole groups, which are refused.
int64_t prompts_of_step(const RunConfig& config) {
  const bool whole = config.train.global_batch_size % config.rollout.num_generations == 0;
  return config.rollout.rollouts && whole ? config.train.global_batch_size / config.rollout.num_generations : 0;
}

// The largest number of ranks that divides the micro-batches and the prompts of sampled answers evenly, has a core per
// rank, and forms whole groups: of the ranks that share a sample and, within each pipeline stage, of those that divide
// the experts. With fewer cores, one group.
int64_t automatic_ranks(const RunConfig& config, int64_t cores) {
  const ParallelConfig& parallel = config.parallel;
  int64_t micro_batches = std::gcd(std::max<int64_t>(config.micro_batches(), 1), prompts_of_step(config));
  for (const int64_t size : config.batch_ramp().sizes())
    micro_batches = std::gcd(micro_batches, std::max<int64_t>(size / config.train.micro_batch_size, 1));
  const int64_t model_ranks = parallel.model_ranks();
  const int64_t expert_ranks = std::max<int64_t>(parallel.expert_model_parallel_size, 1) *
                               parallel.expert_tensor_ranks(config.model.moe.num_experts);
  const int64_t group = std::lcm(model_ranks, parallel.pipeline_model_parallel_size * expert_ranks);
  int64_t ranks = std::max<int64_t>(std::min<int64_t>(cores, micro_batches * model_ranks) / group, 1) * group;
  while (ranks > group && micro_batches % (ranks / model_ranks) != 0) ranks -= group;
  return ranks;
}

// One resolution. Each function decides the values that it is named after, and records the reason.
class Resolution {
 public:
  Resolution(const RunConfig& given, const Facts& facts) : values_(given), facts_(facts) {}

  std::pair<RunConfig, std::vector<Decision>> run() && {
    vocabulary();
    packed_samples();
    sampled_conversation();
    positions();
    schedule();
    device();
    ranks();
    threads();
    experts();
    products();
    timeouts();
    values_.validate();
    exchange();
    norm_of_gradients();
    check_trained(values_.model);
    return {std::move(values_), std::move(decisions_)};
  }

 private:
  void decide(const char* key, int64_t& value, int64_t to, const std::string& reason) {
    value = to;
    decisions_.push_back({key, std::to_string(to), reason});
  }

  void vocabulary() {
    int64_t& size = values_.model.vocab_size;
    if (size == 0)
      decide("vocab_size", size, facts_.vocabulary.value_or(kBytes),
             facts_.vocabulary ? "the tokenizer's" : "the bytes, which every tokenizer has");
    const int64_t needed = facts_.vocabulary.value_or(1);
    if (size >= needed) return;
    const bool to_train = values_.data.tokenizer.empty() && needed == values_.data.bpe.vocab_size;
    require<ConfigError>(to_train, "vocab_size = ", size, ", but the tokenizer has ", needed,
                         " entries: leave vocab_size out, or raise it");
    throw ConfigError(
        cat("vocab_size = ", size, ", but the tokenizer that the run trains may have tokenizer_vocab_size = ", needed,
            " entries: ", size > kBytes ? cat("set that to ", size, " too (--tokenizer-vocab-size ", size, "), ") : "",
            "leave vocab_size out, or raise it"));
  }

  // A conversation alone needs no mask, with which attention is slower: its tokens never see the padding behind them.
  void packed_samples() {
    DataConfig& data = values_.data;
    const bool several = data.sft ? data.packing != "none" || data.preferences : data.packs();
    if (!several || (data.reset_position_ids && data.reset_attention_mask)) return;
    data.reset_position_ids = data.reset_attention_mask = true;
    for (const char* key : {"reset_position_ids", "reset_attention_mask"})
      decisions_.push_back({key, "true", cat(data.sft ? "conversations" : "documents", " of a sample are kept apart")});
  }

  // The default prompt is the beginning of a text, and no user's message.
  void sampled_conversation() {
    std::string& prompt = values_.train.sample_prompt;
    const bool sampled = values_.train.sample_interval > 0 || values_.writes_sample();
    if (!values_.data.sft || !sampled || prompt != TrainConfig().sample_prompt) return;
    prompt = "Hello! What can you do?";
    decisions_.push_back({"sample_prompt", prompt, "a user's message, with sft"});
  }

  void positions() {
    AttentionConfig& attention = values_.model.attention;
    if (attention.learned_positions() && attention.max_position_embeddings == 0)
      decide("max_position_embeddings", attention.max_position_embeddings, values_.data.seq_length, "seq_length");
  }

  void schedule() {
    OptimizerConfig& optimizer = values_.optimizer;
    if (values_.train.train_samples > 0) return schedule_of_samples();
    if (facts_.schedule_steps && optimizer.lr_decay_iters == 0)
      decide("lr_decay_iters", optimizer.lr_decay_iters,
             std::max(*facts_.schedule_steps, optimizer.lr_warmup_iters + 1),
             "the length of the run that the checkpoint's schedule was made for");
  }

  void schedule_of_samples() {
    TrainConfig& train = values_.train;
    const int64_t steps = values_.batch_ramp().steps_over(train.train_samples);
    require<ConfigError>(steps > 0, "train_samples = ", train.train_samples,
                         " is less than global_batch_size = ", train.global_batch_size,
                         ", so that there would be no step: raise it, or lower global_batch_size");
    if (train.train_iters != steps)
      decide("train_iters", train.train_iters, steps, cat("steps of train_samples = ", train.train_samples));
    int64_t& end = values_.optimizer.lr_decay_samples;
    if (end == 0) decide("lr_decay_samples", end, train.train_samples, "train_samples");
  }

  void device() {
    std::string& device = values_.parallel.device;
    if (device != "auto") return;
    device = facts_.gpus > 0 ? "cuda" : "cpu";
    decisions_.push_back(
        {"device", device, facts_.gpus > 0 ? counted(facts_.gpus, "usable GPU") : std::string("no usable GPU")});
  }

  void ranks() {
    ParallelConfig& parallel = values_.parallel;
    parallel.peer_memory &= facts_.peer_memory;
    parallel.through_host |= facts_.through_host;
    if (facts_.launched) {
      parallel.ranks_per_process = facts_.launched->ranks_per_process;
      parallel.peer_islands = facts_.launched->peer_islands;
      parallel.host_islands = facts_.launched->host_islands;
      if (parallel.ranks != facts_.launched->ranks)
        decide("ranks", parallel.ranks, facts_.launched->ranks, "started by the launcher");
    }
    if (parallel.ranks > 0) return;
    // The number of ranks is chosen to fit this size, so that only the experts restrict it.
    const int64_t experts = values_.model.moe.num_experts, size = parallel.expert_model_parallel_size;
    require<ConfigError>(size == 0 || size > experts || experts % size == 0, "num_experts = ", experts,
                         " is not divisible by expert_model_parallel_size = ", size, "; ",
                         nearest_divisors("expert_model_parallel_size", size, experts));
    const int64_t places = parallel.on_gpu() ? std::max(std::min(facts_.cores, facts_.gpus), 1) : facts_.cores;
    decide(
        "ranks", parallel.ranks, automatic_ranks(values_, places),
        cat("the most that share global_batch_size / micro_batch_size = ", values_.micro_batches(),
            values_.rollout.rollouts ? cat(" and the ", counted(prompts_of_step(values_), "prompt"), " of a step") : "",
            " evenly, with ", counted(places, parallel.on_gpu() ? "GPU" : "core")));
  }

  void threads() {
    ParallelConfig& parallel = values_.parallel;
    if (parallel.threads > 0) return;
    const int64_t sharing =
        facts_.launched && facts_.launched->local_ranks > 0 ? facts_.launched->local_ranks : parallel.ranks;
    decide("threads", parallel.threads, std::max<int64_t>(facts_.cores / sharing, 1),
           cat(counted(facts_.cores, "core"), " for ", counted(sharing, "rank")));
  }

  void experts() {
    ParallelConfig& parallel = values_.parallel;
    const int ranks = static_cast<int>(parallel.ranks);
    const int64_t num_experts = values_.model.moe.num_experts;
    parallel.validate(ranks, num_experts);
    const int64_t size = parallel.expert_ranks(ranks, num_experts);
    if (size != parallel.expert_model_parallel_size)
      decide("expert_model_parallel_size", parallel.expert_model_parallel_size, size,
             num_experts == 0 ? "the model is dense"
                              : cat("the largest that divides the ranks and the ", num_experts, " experts"));
  }

  // A rank waits for a part of a checkpoint at least as long as in a collective.
  void timeouts() {
    ParallelConfig& parallel = values_.parallel;
    if (parallel.checkpoint_timeout_minutes >= parallel.distributed_timeout_minutes) return;
    parallel.checkpoint_timeout_minutes = parallel.distributed_timeout_minutes;
    decisions_.push_back({"checkpoint_timeout_minutes", fmt::format("{}", parallel.checkpoint_timeout_minutes),
                          "never less than distributed_timeout_minutes"});
  }

  void exchange() {
    ParallelConfig& parallel = values_.parallel;
    const int64_t size = parallel.context_parallel_size;
    if (size == 1 || parallel.context_exchange() != ContextExchange::automatic) return;
    const ContextHeads heads(values_.model, parallel);
    const bool divide = heads.divide(size);
    const std::string text = heads.text(size);
    parallel.cp_comm_type = divide ? "a2a" : "p2p";
    decisions_.push_back(
        {"cp_comm_type", parallel.cp_comm_type,
         text.empty() ? "no layer has attention"
                      : cat(counted(size, "context-parallel rank"), divide ? " divide " : " do not divide ", text)});
  }

  void norm_of_gradients() {
    ParallelConfig& parallel = values_.parallel;
    if (parallel.gradient_norm_fusion != "auto" || !parallel.on_gpu() || parallel.deterministic) return;
    if (!norm_fusion_applies(values_)) return;
    parallel.gradient_norm_fusion = "true";
    decisions_.push_back({"gradient_norm_fusion", "true", "every expert lies on one GPU as a whole"});
  }

  void products() const {
    if (!values_.model.fp8() || !values_.parallel.on_gpu()) return;
    require<ConfigError>(values_.model.dtype == "bfloat16", "fp8_format = ", values_.model.fp8_format,
                         " with dtype = ", values_.model.dtype,
                         ": on GPUs products in 8 bits are of bfloat16; set dtype = \"bfloat16\"");
    require<ConfigError>(facts_.gpus == 0 || facts_.gpu_multiplies_fp8, "fp8_format = ", values_.model.fp8_format,
                         " needs a GPU of compute capability 9.0 (H100, H200), whose instructions its kernels are "
                         "made of, and a build for it; this one, ",
                         facts_.gpu_name, ", has none: set fp8_format = \"none\"");
  }

  RunConfig values_;
  const Facts& facts_;
  std::vector<Decision> decisions_;
};

}  // namespace

Facts facts_of_machine() {
  Facts facts{.cores = usable_cores(),
              .gpus = cuda::devices(),
              .peer_memory = peers_allowed() != PeersAllowed::none,
              .through_host = peers_allowed() == PeersAllowed::host};
  if (facts.gpus == 0) return facts;
  const cuda::Properties& gpu = cuda::properties(0);
  facts.gpu_name = gpu.name;
  facts.gpu_multiplies_fp8 = gpu.hopper_kernels;
  return facts;
}

ResolvedConfig resolve(const RunConfig& given, const Facts& facts) {
  auto [values, decisions] = Resolution(given, facts).run();
  return ResolvedConfig({given, std::move(values), std::move(decisions)});
}

ResolvedConfig ResolvedConfig::with(const std::function<void(RunConfig&)>& change) const {
  RunConfig changed = **this;
  change(changed);
  return resolve(changed, {});
}

// Products with 16-bit operands load 16 bytes of a row at once, for which rows must be multiples of 16 bytes.
std::optional<std::string> slow_vocabulary(const RunConfig& config) {
  constexpr int64_t kAligned = 8;
  const int64_t rows = config.model.padded_vocab_size();
  if (!config.parallel.on_gpu() || size_of(config.model.compute_dtype()) != 2 || rows % kAligned == 0)
    return std::nullopt;
  return cat("the head's products are several times slower with a vocabulary of ", rows,
             " than with a multiple of 8: give --make-vocab-size-divisible-by 128, which adds rows for unused ids");
}

}  // namespace witan
