#include "witan/train/state/rewinds.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "witan/base/error.h"
#include "witan/base/json.h"
#include "witan/checkpoint/json_fields.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/checkpoint/store.h"

namespace witan {
namespace {

constexpr int kListDepth = 3;

bool is_intact(const fs::path& step_folder) {
  try {
    verify_checkpoint(open_checkpoint(step_folder));
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

void write_list(const RunFolder& folder, const std::vector<Rewind>& rewinds) {
  write_file_atomically(folder.rewinds(), Json{{"rewinds", rewinds_to_json(rewinds)}}.dump(1) + "\n");
}

}  // namespace

int64_t step_to_return_to(const fs::path& folder, int64_t step, int64_t save_interval) {
  for (const bool regular : {true, false})
    for (const auto& [saved, path] : step_folders(folder))
      if (saved < step && (!regular || (save_interval > 0 && saved % save_interval == 0)) && is_intact(path))
        return saved;
  return -1;
}

// Removes the later checkpoints first: a run that is killed in between repeats the steps since the earlier one.
void record_rewind(const RunFolder& folder, const std::vector<Rewind>& rewinds) {
  for (const auto& [step, path] : step_folders(folder.checkpoints()))
    if (step > rewinds.back().checkpoint) remove_folder(rename_away(path));
  write_list(folder, rewinds);
}

void take_up_rewinds(const RunFolder& folder, TrainState& state, bool writes) {
  if (!fs::exists(folder.rewinds())) return;
  const Json json = parse_object(read_file(folder.rewinds()), folder.rewinds().string(), kListDepth);
  require<CheckpointError>(json.contains("rewinds"), folder.rewinds().string(), " has no list of rewinds");
  std::vector<Rewind> all = rewinds_from_json(json["rewinds"]);
  const size_t known = state.rewinds.size(), listed = all.size();
  for (size_t count = listed; count > known; --count) {
    if (all[count - 1].checkpoint != state.step) continue;
    all.resize(count);
    state.rewinds = all;
    state.consumed_samples = all.back().consumed_samples;
    break;
  }
  if (writes && state.rewinds.size() < listed) write_list(folder, state.rewinds);
}

bool keeps_anomaly(const fs::path& folder, int64_t step, int64_t most) {
  const auto there = step_folders(folder);
  return std::ranges::count_if(there, [&](const auto& one) { return one.first != step; }) < most;
}

}  // namespace witan
