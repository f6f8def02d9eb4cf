#include "witan/train/loop/replay_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/base/text.h"
#include "witan/comm/texts.h"
#include "witan/train/step/objective.h"

namespace witan {
namespace {

constexpr size_t kMostDifferences = 4;  // described in the message

Json entries_of(const PassDigest& digest) {
  Json entries = Json::array();
  for (const PassDigest::Entry& entry : digest.entries())
    entries.push_back({entry.micro_batch, entry.what, entry.hash});
  return entries;
}

// Describes the first entry in which the two differ. `before`: number of micro-batches of earlier ranks.
std::string first_difference(const Json& one, const Json& other, int64_t before) {
  for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
    if (one[i] == other[i]) continue;
    const auto what = one[i][1].get<std::string>();
    return cat(what == "loss" ? "the loss" : cat("the gradient of ", what), " in micro-batch ",
               before + one[i][0].get<int64_t>());
  }
  return "the number of results";
}

}  // namespace

ReplayCheck::ReplayCheck(Engine& engine, const Layout& layout, int rank, const ResolvedConfig& config,
                         const RunData& data)
    : engine_(engine),
      layout_(layout),
      rank_(rank),
      config_(config),
      data_(data),
      ring_(layout),
      own_(engine.model().parameters()),
      again_(engine.model().parameters()) {}

void ReplayCheck::before_step(int64_t step, int64_t updates, int64_t consumed_samples) {
  if (step % config_->train.replay_interval != 0) return;
  step_ = {step, updates, consumed_samples};
  replay(1, again_);
  engine_.feature<PassNotes>()->note(&own_);
  under_way_ = true;
}

int64_t ReplayCheck::micro_batches_of_a_rank() const {
  return config_->batch_ramp().size(step_.consumed_samples) / (config_->train.micro_batch_size * layout_.data_ranks());
}

// Makes the batches as the loader does (data/batches/loader.h).
void ReplayCheck::replay(int steps_back, PassDigest& digest) {
  const int as = layout_.data_rank(ring_.rank_after(rank_, -steps_back));
  const int64_t size = config_->train.micro_batch_size, count = micro_batches_of_a_rank();
  BatchOptions options = data_.batch;
  options.columns = make_objective(*config_)->columns();
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i)
    batches.push_back(make_batch(*data_.train, step_.consumed_samples + (as * count + i) * size, size, options));
  auto& notes = *engine_.feature<PassNotes>();
  notes.note(&digest);
  engine_.replay_passes(batches, as, step_.step, step_.updates);
  notes.note(nullptr);
}

void ReplayCheck::before_update(Group& host, Stream& stream) {
  if (!under_way_) return;
  under_way_ = false;
  engine_.feature<PassNotes>()->note(nullptr);
  const std::vector<int64_t> own = gather_numbers(host, stream, static_cast<int64_t>(own_.hash()));
  const std::vector<int64_t> again = gather_numbers(host, stream, static_cast<int64_t>(again_.hash()));
  std::vector<Difference> differences;
  for (int rank = 0; rank < layout_.world_size(); ++rank)
    if (const int other = ring_.rank_after(rank, 1);
        again[static_cast<size_t>(other)] != own[static_cast<size_t>(rank)])
      differences.push_back({rank, other});
  if (differences.empty()) return;
  throw CommError(describe(host, stream, differences, own, again));
}

// The weights are still those of the step, so that a third rank can repeat the computation. It overwrites gradients,
// which no update will use.
std::string ReplayCheck::describe(Group& host, Stream& stream, const std::vector<Difference>& differences,
                                  const std::vector<int64_t>& own, const std::vector<int64_t>& again) {
  const Json mine = {{"own", entries_of(own_)}, {"again", entries_of(again_)}};
  const std::vector<std::string> texts = gather_texts(host, stream, mine.dump());
  std::vector<int64_t> third;
  if (ring_.replicas() > 2) {
    replay(2, again_);
    third = gather_numbers(host, stream, static_cast<int64_t>(again_.hash()));
  }
  std::string text = cat("step ", step_.step, ": replay_interval: ");
  for (size_t i = 0; host.rank() == 0 && i < std::min(differences.size(), kMostDifferences); ++i) {
    const auto [rank, other] = differences[i];
    const int64_t before = layout_.data_rank(rank) * micro_batches_of_a_rank();
    text += cat(i > 0 ? "; " : "", "of the micro-batches of rank ", rank, ", rank ", other,
                " computed other bits than rank ", rank, ", first in ",
                first_difference(Json::parse(texts[static_cast<size_t>(rank)])["own"],
                                 Json::parse(texts[static_cast<size_t>(other)])["again"], before));
    if (third.empty()) {
      text += ", and there is no third replica to say which is right";
      continue;
    }
    const int judge = ring_.rank_after(rank, 2);
    const int64_t said = third[static_cast<size_t>(judge)];
    if (said == own[static_cast<size_t>(rank)])
      text += cat(", and rank ", judge, " the same as rank ", rank, ": rank ", other, " is wrong");
    else if (said == again[static_cast<size_t>(other)])
      text += cat(", and rank ", judge, " the same as rank ", other, ": rank ", rank, " is wrong");
    else
      text += cat(", and rank ", judge, " different bits again");
  }
  if (differences.size() > kMostDifferences)
    text += cat("; and ", counted(static_cast<int64_t>(differences.size() - kMostDifferences), "more difference"));
  text +=
      ". A processor or its memory is faulty, or hosts have processors of different kinds. Nothing was updated in this "
      "step; checkpoints since the replay before it may hold wrong values";
  return broadcast_text(host, stream, text, 0);
}

}  // namespace witan
