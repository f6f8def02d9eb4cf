#include "witan/train/loop/start_check.h"

#include <algorithm>

#include "witan/base/threads/threads.h"
#include "witan/comm/control_group.h"
#include "witan/train/step/device.h"
#include "witan/train/step/engine.h"

namespace witan {
namespace {

// A pipeline is full with as many micro-batches as it has stages, and an interleaved one passes that many per chunk.
// The result divides the rank's number, which some layouts need to be a power of two or a multiple of the stages.
int64_t micro_batches_that_show_all(const RunConfig& config, const Layout& layout) {
  const int64_t own = config.micro_batches() / layout.data_ranks();
  const int64_t stages = config.parallel.pipeline_model_parallel_size;
  const auto fits = [&](int64_t count) { return own % count == 0 && (own % stages != 0 || count % stages == 0); };
  int64_t count = std::min(own, 2 * stages);
  while (!fits(count)) --count;
  return count;
}

}  // namespace

Settings settings_of(RunConfig config) {
  Settings settings;
  for (const Field& field : config.fields())
    if (field.name != "threads") settings.emplace_back(field.name, field.text());
  return settings;
}

void require_same_settings(World& world, int rank, const Settings& settings) {
  if (world.size() == 1) return;
  ControlGroup control(world, rank, "settings");
  require_same_settings(control.stream(), control.group(), settings);
}

CallSchedule schedule_of_step(const ResolvedConfig& config, const Layout& layout, int rank, PeerAccess peers) {
  const int64_t own = micro_batches_that_show_all(config, layout);
  const ResolvedConfig shorter = config.with([&](RunConfig& values) {
    values.train.global_batch_size = own * values.train.micro_batch_size * layout.data_ranks();
    values.train.rampup_batch_size.clear();
  });
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta, rank, device_of(config, 0).kind}, Arena::meta(), pool);
  const Groups groups = make_meta_groups(layout, rank, peers);
  Engine engine(stream, groups, shorter);
  CallSchedule schedule;
  for (const Axes& axes : layout.group_axes()) schedule.follow(groups.over(axes), layout.mesh().ranks(rank, axes));
  schedule.follow(groups.embedding(), layout.embedding_ranks(rank));
  if (layout.has_expert_hosts()) {
    schedule.follow(groups.experts_of_host(), layout.expert_ranks_of_host(rank));
    schedule.follow(groups.experts_between_hosts(), layout.expert_ranks_between_hosts(rank));
  }
  engine.step(std::vector<Batch>(static_cast<size_t>(own), sized_batch(*config)), 1, 0);
  for (Group* group : groups.all()) group->observe(nullptr);
  return schedule;
}

void require_same_schedule(World& world, int rank, const CallSchedule& schedule) {
  if (world.size() == 1) return;
  ControlGroup control(world, rank, "schedule");
  require_same_schedule(control.stream(), control.group(), schedule);
}

}  // namespace witan
