#include "witan/comm/process_world.h"

#include <exception>
#include <numeric>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/process_group.h"
#include "witan/comm/rank_error.h"

namespace witan {
namespace {

using Kind = ProcessFailure::Kind;

constexpr double kForEver = 1e8;  // s: years; a clock holds it
constexpr uint64_t kFirst = 1;    // the channel of first(); those of groups are hashes

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "";
  }
}

}  // namespace

ProcessWorld::ProcessWorld(const Launch& launch, const ProcessWorldOptions& options)
    : links_(launch.rank, meet_peers(launch, options.meeting_seconds), options.deadline_seconds),
      deadline_(options.deadline_seconds) {
  int before = 0, here = 0;
  for (int other = 0; other < size(); ++other) {
    if (links_.host(other) != links_.host(rank())) continue;
    ++here;
    if (other < rank()) ++before;
  }
  local_rank_ = launch.local_rank.value_or(before);
  local_size_ = here;
}

ProcessWorld::~ProcessWorld() {
  if (std::uncaught_exceptions() > 0) links_.fail({Kind::failed, rank(), ""});
}

void ProcessWorld::run(const std::function<void(int rank)>& body) {
  std::exception_ptr error;
  try {
    return body(rank());
  } catch (...) {
    error = std::current_exception();
  }
  const Suspicion suspicion = suspicion_of(error);
  const ProcessFailure root =
      links_.fail({suspicion == Suspicion::own_error ? Kind::failed : Kind::disagreement, rank(), message_of(error)});
  try {
    // Whoever was merely stopped is told by whom.
    if (suspicion == Suspicion::aborted) throw_failure(root, links_.host(root.rank));
    std::rethrow_exception(error);
  } catch (...) {
    rethrow_named(rank(), std::current_exception());
  }
}

std::unique_ptr<HostGroup> ProcessWorld::group(int rank, const std::vector<int>& ranks, std::string name) {
  require<ConfigError>(rank == this->rank(), "axis ", name, ": rank ", rank, " is not in this process");
  const int here = rank_in_group(rank, ranks, size(), name);
  return std::make_unique<ProcessGroup>(links_, ranks, here, std::move(name), deadline_);
}

int ProcessWorld::local_rank(int rank) const {
  require<ConfigError>(rank == this->rank(), "rank ", rank, " is not in this process");
  return local_rank_;
}

std::string ProcessWorld::first(const std::function<std::string()>& body) {
  std::vector<int> everyone(static_cast<size_t>(size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  ProcessGroup group(links_, everyone, rank(), "first", kForEver);
  group.agree({Collective::Kind::barrier, {}, {}, {}, {}});
  if (rank() != 0) {
    std::string told;
    links_.wait(
        [&](Links::View& view) {
          if (!view.has_note(0, kFirst, Links::Note::answer)) return false;
          const Links::Bytes bytes = view.next_note(0, kFirst, Links::Note::answer);
          told.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          return true;
        },
        [](Links::View& view) { return view.left(0) ? "rank 0 returned, but the others wait for it" : ""; },
        [](Links::View&) { return "rank 0 was not done in years"; }, kForEver);
    return told;
  }
  try {
    const std::string told = body();
    for (int other = 1; other < size(); ++other)
      links_.send_note(other, kFirst, Links::Note::answer, std::as_bytes(std::span(told)), deadline_);
    return told;
  } catch (...) {
    links_.fail({Kind::failed, rank(), message_of(std::current_exception())});
    throw;
  }
}

}  // namespace witan
