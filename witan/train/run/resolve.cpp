#include "witan/train/run/resolve.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <sstream>
#include <string_view>
#include <variant>

#include "witan/base/error.h"
#include "witan/base/file.h"
#include "witan/tensor/cuda.h"

namespace witan {
namespace {

// The most ranks that share the micro-batches evenly, have a core each and form whole groups of the ranks that are to
// share the work on a sample, and in each stage of a pipeline of those that are to divide the experts; one such group
// when there are fewer cores than that.
int64_t automatic_ranks(const RunConfig& config, int cores) {
  const ParallelConfig& parallel = config.parallel;
  const int64_t micro_batches = std::max<int64_t>(config.micro_batches(), 1), model_ranks = parallel.model_ranks();
  const int64_t divided = std::max<int64_t>(parallel.expert_model_parallel_size, 1) *
                          parallel.expert_tensor_ranks(config.model.moe.num_experts);
  const int64_t group = std::lcm(model_ranks, parallel.pipeline_model_parallel_size * divided);
  int64_t ranks = std::max<int64_t>(std::min<int64_t>(cores, micro_batches * model_ranks) / group, 1) * group;
  while (ranks > group && micro_batches % (ranks / model_ranks) != 0) ranks -= group;
  return ranks;
}

// Files and folders, separated by commas, however their paths are spelt.
std::vector<fs::path> files_of(const std::string& list) {
  std::vector<fs::path> files;
  std::istringstream pieces(list);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    std::error_code unknown;
    const fs::path whole = fs::weakly_canonical(fs::absolute(piece, unknown), unknown);
    files.push_back(unknown ? fs::path(piece) : whole);
  }
  return files;
}

bool says_the_same(const Field& before, const Field& now) {
  constexpr std::array<std::string_view, 3> files = {"data", "data_path", "tokenizer"};
  if (before.text() == now.text()) return true;
  return std::ranges::find(files, now.name) != files.end() &&
         files_of(*std::get<std::string*>(before.value)) == files_of(*std::get<std::string*>(now.value));
}

}  // namespace

void resolve(RunConfig& config, int cores, int64_t vocab_size) {
  auto& model = config.model;
  if (model.vocab_size == 0) model.vocab_size = vocab_size;
  require<ConfigError>(model.vocab_size >= vocab_size, "vocab_size = ", model.vocab_size, ", but the tokenizer has ",
                       vocab_size, " entries: leave vocab_size out, or raise it");
  auto& attention = model.attention;
  if (attention.learned_positions() && attention.max_position_embeddings == 0)
    attention.max_position_embeddings = config.data.seq_length;
  auto& parallel = config.parallel;
  const int gpus = cuda::devices();
  if (parallel.device == "auto") parallel.device = gpus > 0 ? "cuda" : "cpu";
  if (parallel.ranks == 0)
    parallel.ranks = automatic_ranks(config, parallel.on_gpu() ? std::max(std::min(cores, gpus), 1) : cores);
  if (parallel.threads == 0) parallel.threads = std::max<int64_t>(cores / parallel.ranks, 1);
  const int ranks = static_cast<int>(parallel.ranks);
  parallel.validate(ranks, model.moe.num_experts);
  parallel.expert_model_parallel_size = parallel.expert_ranks(ranks, model.moe.num_experts);
}

bool is_identity(const Field& field) {
  constexpr std::array<std::string_view, 4> sections = {"model", "moe", "data", "tokenizer"};
  constexpr std::array<std::string_view, 3> keys = {"micro_batch_size", "global_batch_size", "seed"};
  constexpr std::array<std::string_view, 4> free = {"recompute_granularity", "moe_grouped_gemm", "hidden_dropout",
                                                    "attention_dropout"};
  const auto contains = [](const auto& list, std::string_view word) {
    return std::find(list.begin(), list.end(), word) != list.end();
  };
  return contains(keys, field.name) || (contains(sections, field.section) && !contains(free, field.name));
}

std::vector<std::string> changed_identity(RunConfig before, RunConfig now) {
  std::vector<std::string> changes;
  const Fields was = before.fields(), is = now.fields();
  for (size_t i = 0; i < was.size(); ++i)
    if (is_identity(is[i]) && !says_the_same(was[i], is[i]))
      changes.push_back(cat(is[i].name, " = ", is[i].text(), " (was ", was[i].text(), ")"));
  return changes;
}

}  // namespace witan
