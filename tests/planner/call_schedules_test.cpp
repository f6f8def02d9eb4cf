// Compares the calls that all ranks make in a step with golden files, tests/golden/call_schedules, one for each layout.
// They ensure that a refactoring keeps the collectives, sends and receives. After an intended change of calls, or of
// the names of their call sites, rewrite the files and review their diff:
//   WITAN_UPDATE_GOLDEN=1 build/test/tests/test_planner --gtest_filter='*CallSchedules*'
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "train/step/layouts/laid_out.h"
#include "witan/base/files/file.h"
#include "witan/parallel/layout.h"
#include "witan/planner/memory/meta_rank.h"
#include "witan/train/loop/start_check.h"

namespace witan {
namespace {

using testing::LaidOut;

const fs::path kFolder = fs::path(WITAN_SOURCE_DIR) / "tests/golden/call_schedules";
constexpr size_t kCallColumn = 52;  // width of the calls, on which ranks agree; the place of the call follows
constexpr const char* kPlaceMark = " | ";

struct Case {
  const char* name;  // of the golden file
  LaidOut layout;
  std::function<void(RunConfig&)> change = [](RunConfig&) {};
  PeerAccess peers = PeerAccess::none;
};
std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.name;
}

void without_overlap(RunConfig& config) {
  config.parallel.overlap_grad_reduce = config.parallel.overlap_param_gather = false;
}
void deterministic(RunConfig& config) {
  config.parallel.deterministic = true;
}
// Tensor parallelism needs sequence parallelism only with experts.
void dense_without_sequence_parallelism(RunConfig& config) {
  config.model.moe.num_experts = 0;
  config.parallel.expert_model_parallel_size = config.parallel.expert_tensor_parallel_size = 1;
  config.parallel.sequence_parallel = false;
}
void untied(RunConfig& config) {
  config.model.untie_embeddings_and_output_weights = true;
}
void overlapping_shared_experts(RunConfig& config) {
  config.model.moe.moe_shared_expert_intermediate_size = 16;
  config.model.moe.moe_shared_expert_overlap = true;
}
void by_hosts(RunConfig& config) {
  config.parallel.hierarchical_expert_parallel_size = 2;
  config.model.moe.moe_exchange_factor = 1.5;
}
void on_gpus(RunConfig& config) {
  config.parallel.device = "cuda";
  config.model.dtype = "bfloat16";
}

// Every axis alone or beside data parallelism, every kind of sharding, and mixes of them.
const std::vector<Case> kCases = {
    {"data", {"replicate=4,expert=1"}},
    {"data_deterministic", {"replicate=2,expert=2"}, deterministic},
    {"zero1_without_overlap", {"replicate=2,shard=2,expert=2"}, without_overlap},
    {"zero2_deterministic", {"shard=4,expert=2", "optim_grads"}, deterministic},
    {"fsdp", {"shard=4,expert=2", "optim_grads_params"}},
    {"tensor_dense", {"replicate=2,tensor=2"}, dense_without_sequence_parallelism},
    {"tensor_sequence_deterministic", {"replicate=2,tensor=2,expert=2,expert_tensor=1"}, deterministic},
    {"pipeline_1f1b_tied", {"replicate=2,pipeline=2,expert=2"}},
    {"pipeline_interleaved_zero1",
     {.mesh = "shard=2,pipeline=2", .chunks = 2},
     [](RunConfig& config) {
       untied(config);
       config.parallel.use_distributed_optimizer = true;
     }},
    {"context", {.mesh = "replicate=2,context=2,expert=1", .comm = "p2p"}},
    {"context_heads", {.mesh = "replicate=2,context=2,expert=1", .comm = "a2a"}},
    {"expert", {"replicate=4,expert=4"}, without_overlap},
    {"expert_tensor", {"replicate=4,expert=2,expert_tensor=2"}},
    {"expert_on_gpus", {"replicate=2,shard=2,expert=4"}, on_gpus, PeerAccess::wanted},
    {"expert_hosts", {"replicate=4,expert=4"}, by_hosts},
    {"expert_hosts_on_gpus",
     {"replicate=4,expert=4"},
     [](RunConfig& config) {
       by_hosts(config);
       on_gpus(config);
     },
     PeerAccess::wanted},
    {"expert_overlap", {"tensor=2,expert=2,expert_tensor=1"}, overlapping_shared_experts},
    {"mix_fsdp", {"shard=2,tensor=2,pipeline=2,expert=2,expert_tensor=1", "optim_grads_params"}, untied},
    {"mix_zero1_without_overlap",
     {.mesh = "replicate=2,shard=2,context=2,tensor=2,expert=2,expert_tensor=1", .strategy = "optim", .comm = "p2p"},
     without_overlap},
};

// A dense block and three MoE blocks, with every router loss.
RunConfig moe_config() {
  RunConfig config;
  config.model.num_layers = 4;
  config.model.hidden_size = 32;
  config.model.vocab_size = 64;
  config.model.mlp.ffn_hidden_size = 24;
  config.model.attention.num_attention_heads = 8;
  config.model.attention.num_query_groups = 4;
  config.model.moe.num_experts = 4;
  config.model.moe.moe_layer_freq = "[0,1,1,1]";
  config.model.moe.moe_z_loss_coeff = 1e-3;
  config.data.seq_length = 16;
  config.train.train_iters = 30;
  config.train.micro_batch_size = 1;
  config.train.sample_tokens = 0;
  config.optimizer.lr_warmup_iters = 3;
  return config;
}

RunConfig config_of(const Case& of) {
  RunConfig config = laid_out(moe_config(), of.layout);
  of.change(config);
  // Uses as many micro-batches as fill a pipeline, and several without a pipeline.
  const int64_t per_rank = 2 * config.parallel.pipeline_model_parallel_size;
  config.train.global_batch_size = per_rank * config.train.micro_batch_size * config.parallel.data_ranks();
  config.validate();
  return config;
}

// The calls that all ranks of a lane make, and their call sites, which differ between stages.
struct GoldenLane {
  std::string name;
  std::vector<int> ranks;
  std::vector<std::string> calls;
  std::vector<std::vector<std::string>> places;  // [calls]: the different places of each call
};

std::vector<GoldenLane> lanes_of(const Case& of) {
  const RunConfig config = config_of(of);
  const Layout layout = layout_of(config);
  std::vector<GoldenLane> lanes;
  std::map<std::pair<std::string, std::vector<int>>, std::set<int>> holders;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const CallSchedule schedule = schedule_of_step(resolve(config, {}), layout, rank, of.peers);
    for (const CallSchedule::Lane& own : schedule.lanes()) {
      if (own.calls.empty()) continue;
      holders[{own.name, own.ranks}].insert(rank);
      auto lane = std::ranges::find_if(
          lanes, [&](const GoldenLane& other) { return other.name == own.name && other.ranks == own.ranks; });
      if (lane == lanes.end()) {
        lanes.push_back({own.name, own.ranks, own.calls, {}});
        lane = lanes.end() - 1;
        lane->places.resize(own.calls.size());
      }
      EXPECT_EQ(lane->calls, own.calls) << own.name << " on rank " << rank;
      if (lane->calls != own.calls) continue;
      for (size_t i = 0; i < own.places.size(); ++i)
        if (std::ranges::find(lane->places[i], own.places[i]) == lane->places[i].end())
          lane->places[i].push_back(own.places[i]);
    }
  }
  for (const auto& [lane, ranks] : holders)
    EXPECT_EQ(ranks, std::set<int>(lane.second.begin(), lane.second.end())) << lane.first;
  return lanes;
}

std::string line_of(std::string call, const std::string& place) {
  call.resize(std::max(call.size(), kCallColumn), ' ');
  return call + kPlaceMark + place;
}

// The lane's calls; consecutive equal calls at the same place are listed once.
std::vector<std::string> lines_of(const GoldenLane& lane) {
  std::vector<std::string> lines;
  for (size_t i = 0, next = 0; i < lane.calls.size(); i = next) {
    while (next < lane.calls.size() && lane.calls[next] == lane.calls[i] && lane.places[next] == lane.places[i]) ++next;
    std::string places;
    for (const std::string& place : lane.places[i]) places += (places.empty() ? "" : " / ") + place;
    lines.push_back(line_of(cat("  ", lane.calls[i], next - i > 1 ? cat(" x", next - i) : ""), places));
  }
  return lines;
}

// Lanes of one axis with the same calls at the same places are written once, under their ranks. They are ordered by
// rank, since the order of names and of the program's lists may change.
std::string text_of(const Case& of) {
  std::vector<GoldenLane> lanes = lanes_of(of);
  std::ranges::stable_sort(lanes, {}, &GoldenLane::ranks);
  std::vector<std::pair<std::string, std::vector<std::string>>> blocks;  // name and lines
  std::vector<std::string> ranks;                                        // of each block
  for (const GoldenLane& lane : lanes) {
    std::string own = "ranks";
    for (const int rank : lane.ranks) own += cat(" ", rank);
    const std::pair block(lane.name, lines_of(lane));
    const auto found = std::ranges::find(blocks, block);
    if (found == blocks.end()) {
      blocks.push_back(block);
      ranks.push_back(own);
    } else {
      ranks[static_cast<size_t>(found - blocks.begin())] += "; " + own;
    }
  }
  std::string text;
  for (size_t i = 0; i < blocks.size(); ++i) {
    text += line_of(ranks[i], blocks[i].first) + "\n";
    for (const std::string& line : blocks[i].second) text += line + "\n";
  }
  return text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The first line that differs, in both versions; empty if there is none.
std::string difference(const std::string& golden, const std::string& now) {
  const std::vector<std::string> before = split(golden), after = split(now);
  const auto calls = [](const std::string& line) { return line.substr(0, line.find(kPlaceMark)); };
  const auto show = [](const std::vector<std::string>& lines, size_t i) {
    return i < lines.size() ? lines[i] : "(no further line)";
  };
  const auto first = std::ranges::mismatch(before, after);
  if (first.in1 == before.end() && first.in2 == after.end()) return "";
  const auto call = std::ranges::mismatch(before, after, {}, calls, calls);
  const bool same_calls = call.in1 == before.end() && call.in2 == after.end();
  const auto at = static_cast<size_t>((same_calls ? first.in1 : call.in1) - before.begin());
  return cat(same_calls ? "the calls are the same, but names or places differ" : "calls differ", ", first in line ",
             at + 1, ":\n  file: ", show(before, at), "\n  now:  ", show(after, at));
}

class CallSchedules : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Layouts, CallSchedules, ::testing::ValuesIn(kCases),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST_P(CallSchedules, MatchGoldenFiles) {
  const fs::path path = kFolder / cat(GetParam().name, ".txt");
  const std::string now = text_of(GetParam());
  ASSERT_FALSE(HasFailure()) << "the ranks of a lane disagree, so no golden file can describe their calls";
  if (std::getenv("WITAN_UPDATE_GOLDEN") != nullptr) {
    AtomicFile file(path);
    file.write(now);
    file.commit();
    return;
  }
  const std::string differs = difference(read_file(path), now);
  EXPECT_TRUE(differs.empty()) << path.string() << ": " << differs
                               << "\nIf this is intended, WITAN_UPDATE_GOLDEN=1 rewrites the file.";
}

TEST(CallSchedulesFile, EveryFileBelongsToALayout) {
  std::set<std::string> files, layouts;
  for (const auto& entry : fs::directory_iterator(kFolder)) files.insert(entry.path().stem());
  for (const Case& one : kCases) layouts.insert(one.name);
  EXPECT_EQ(files, layouts);
}

TEST(CallSchedulesFile, DifferencesShowBothVersions) {
  const std::string text = line_of("ranks 0 1", "axis shard") + "\n" + line_of("  barrier", "step 1") + "\n";
  EXPECT_EQ(difference(text, text), "");
  const std::string moved = line_of("ranks 0 1", "axis data") + "\n" + line_of("  barrier", "step 1") + "\n";
  EXPECT_EQ(difference(text, moved),
            cat("the calls are the same, but names or places differ, first in line 1:\n  file: ",
                line_of("ranks 0 1", "axis shard"), "\n  now:  ", line_of("ranks 0 1", "axis data")));
  EXPECT_EQ(
      difference(text, line_of("ranks 0 1", "axis data") + "\n"),
      cat("calls differ, first in line 2:\n  file: ", line_of("  barrier", "step 1"), "\n  now:  (no further line)"));
}

}  // namespace
}  // namespace witan
