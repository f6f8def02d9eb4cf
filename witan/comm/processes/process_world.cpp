#include "witan/comm/processes/process_world.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/checks/preflight.h"
#include "witan/comm/failure.h"
#include "witan/comm/processes/process_group.h"

namespace witan {
namespace {

constexpr double kLastWordsSeconds = 5;
constexpr uint64_t kFirst = 1;  // the channel of first(); those of groups are hashes

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "";
  }
}

// Every rank ends with its own error, except where all of them have the same one.
ProcessFailure::Kind kind_of(const std::exception_ptr& error, Suspicion suspicion) {
  if (suspicion != Suspicion::own_error) return ProcessFailure::Kind::disagreement;
  try {
    std::rethrow_exception(error);
  } catch (const SettingsDifferError&) {
    return ProcessFailure::Kind::configuration;
  } catch (...) {
    return ProcessFailure::Kind::failed;
  }
}

// A debugger holds a whole process, so that all of its ranks are silent.
std::shared_ptr<DebugHold> hold_of(const Launch& launch, const ProcessWorldOptions& options) {
  if (options.debug_ranks.empty()) return nullptr;
  const int each = options.ranks_per_process;
  std::vector<int> ranks, here;
  for (int rank = 0; rank < launch.size * each; ++rank) {
    const auto beside = [&](int other) { return other / each == rank / each; };
    if (std::ranges::none_of(options.debug_ranks, beside)) continue;
    ranks.push_back(rank);
    if (rank / each == launch.rank) here.push_back(rank);
  }
  return std::make_shared<DebugHold>(ranks, here);
}

// work(0) … work(count - 1), at the same time. It does not throw.
template <class Work>
void side_by_side(size_t count, const Work& work) {
  std::vector<std::thread> others;
  for (size_t index = 1; index < count; ++index) others.emplace_back(work, index);
  work(0);
  for (std::thread& other : others) other.join();
}

// The connections of each rank of this process to all ranks, and what carries their messages.
std::vector<std::unique_ptr<Links>> meet(const Launch& launch, const ProcessWorldOptions& options,
                                         const std::shared_ptr<DebugHold>& hold, EngineChoice& engine) {
  const int count = options.ranks_per_process;
  require<ConfigError>(count >= 1, "a process runs one rank at least, not ", count);
  load_engine(launch.engine);
  std::vector<std::unique_ptr<Links>> links(static_cast<size_t>(count));
  std::vector<std::exception_ptr> errors(links.size());
  side_by_side(links.size(), [&](size_t index) {
    Launch own = launch;
    own.rank = launch.rank * count + static_cast<int>(index);
    own.size = launch.size * count;
    try {
      links[index] =
          std::make_unique<Links>(meet_peers(own, options.meeting_seconds, count), options.deadline_seconds, hold);
      const EngineChoice choice = choose_engine(*links[index], launch.engine, options.meeting_seconds);
      if (index == 0) engine = choice;
    } catch (...) {
      errors[index] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return links;
}

}  // namespace

ProcessWorld::ProcessWorld(const Launch& launch, const ProcessWorldOptions& options)
    : hold_(hold_of(launch, options)),
      links_(meet(launch, options, hold_, engine_)),
      threads_(size(), {.deadline_seconds = options.deadline_seconds,
                        .first = first_rank(),
                        .count = options.ranks_per_process,
                        .hold = hold_}),
      deadline_(options.deadline_seconds) {
  const std::string& own_host = links_.front()->host(first_rank());
  int before = 0;
  local_size_ = 0;
  for (int other = 0; other < size(); ++other) {
    if (links_.front()->host(other) != own_host) continue;
    ++local_size_;
    if (other < first_rank()) ++before;
  }
  local_rank_ = launch.local_rank ? *launch.local_rank * options.ranks_per_process : before;
}

// Each waits until the others have heard it, those of this process too: side by side.
ProcessWorld::~ProcessWorld() {
  const bool fails = std::uncaught_exceptions() > 0;
  const auto leave = [fails](std::unique_ptr<Links>& links) {
    if (fails) links->fail({ProcessFailure::Kind::failed, links->rank(), ""});
    links.reset();
  };
  side_by_side(links_.size(), [&](size_t index) { leave(links_[index]); });
}

Links& ProcessWorld::links(int rank) const {
  return *links_[static_cast<size_t>(rank - first_rank())];
}

void ProcessWorld::run(const std::function<void(int rank)>& body) {
  threads_.run([&](int rank) {
    try {
      body(rank);
    } catch (...) {
      stop(rank, std::current_exception());
    }
  });
}

void ProcessWorld::stop(int rank, const std::exception_ptr& error) {
  const Suspicion suspicion = suspicion_of(error);
  // A rank that was merely stopped learns which rank failed. A thread of the same process that failed reports itself.
  const auto failed = links(rank).failed();
  const bool knows = failed && message_of(error).starts_with(words_of(*failed, links(rank).host(failed->rank)));
  if (suspicion == Suspicion::aborted && !knows)
    links(rank).wait([](Links::View&) { return false; }, [](Links::View&) { return ""; },
                     [&](Links::View&) { return message_of(error); }, kLastWordsSeconds);
  links(rank).fail({kind_of(error, suspicion), rank, message_of(error)});
  std::rethrow_exception(error);
}

std::unique_ptr<HostGroup> ProcessWorld::group(int rank, const std::vector<int>& ranks, std::string name) {
  require<ConfigError>(runs(rank), "axis ", name, ": rank ", rank, " is not in this process");
  const int here = rank_in_group(rank, ranks, size(), name);
  if (std::ranges::all_of(ranks, [&](int other) { return runs(other); }))
    return threads_.group(rank, ranks, std::move(name));
  return std::make_unique<ProcessGroup>(links(rank), ranks, here, std::move(name), deadline_);
}

int ProcessWorld::local_rank(int rank) const {
  require<ConfigError>(runs(rank), "rank ", rank, " is not in this process");
  return local_rank_ + rank - first_rank();
}

// Every process tells rank 0 that it is there, which answers when it is done.
std::string ProcessWorld::first(const std::function<std::string()>& body) {
  Links& own = *links_.front();
  const auto await = [&own](int from, Control kind) {
    return own.await_control(from, kFirst, kind, cat("rank ", from, " returned, but the others wait for it"),
                             cat("rank ", from, " was not there in years"), Links::kForEver);
  };
  if (first_rank() != 0) {
    own.send_control(0, kFirst, Control::ready, {}, deadline_);
    const Links::Bytes reply = await(0, Control::answer);
    return {reinterpret_cast<const char*>(reply.data()), reply.size()};
  }
  std::vector<int> leaders;  // the first rank of each other process
  for (int rank = threads_.local_size(); rank < size(); rank += threads_.local_size()) leaders.push_back(rank);
  for (const int leader : leaders) await(leader, Control::ready);
  try {
    const std::string reply = body();
    for (const int leader : leaders)
      own.send_control(leader, kFirst, Control::answer, std::as_bytes(std::span(reply)), deadline_);
    own.wait_sent(leaders, kFirst, deadline_);
    return reply;
  } catch (...) {
    own.fail({ProcessFailure::Kind::failed, 0, message_of(std::current_exception())});
    throw;
  }
}

}  // namespace witan
