#include "witan/planner/search/search.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <tuple>

#include "witan/base/error.h"
#include "witan/base/threads/mutex.h"
#include "witan/base/threads/threads.h"
#include "witan/planner/memory/reserve.h"
#include "witan/planner/plan.h"
#include "witan/train/config/resolve.h"

namespace witan {
namespace {

constexpr size_t kNear = 3;

struct Candidate {
  LayoutChoice choice;
  LayoutEstimate estimate;
};

// The key with which an error message of validation begins.
std::string reason_of(const std::string& text) {
  return text.substr(0, text.find_first_of(" ,:"));
}

class LayoutSearch {
 public:
  LayoutSearch(const RunConfig& config, const Cluster& cluster, const SearchOptions& options)
      : config_(config),
        cluster_(cluster),
        options_(options),
        ceilings_(cluster.ceilings({config.model.dtype, static_cast<int>(options.limits.gpus), 1})) {}

  SearchResult run() && {
    const std::vector<Candidate> candidates = estimate_all();
    std::vector<FoundLayout> fit, too_large;
    for (FoundLayout& one : plan_quickly(candidates.empty() ? least_of_the_large() : worth_a_plan(candidates)))
      (one.plan.needed_bytes() <= options_.memory ? fit : too_large).push_back(std::move(one));
    result_.fit = static_cast<int64_t>(fit.size());
    std::ranges::stable_sort(fit, {}, [](const FoundLayout& one) { return one.time.seconds; });
    std::ranges::stable_sort(too_large, {}, [](const FoundLayout& one) { return one.plan.needed_bytes(); });
    plan_fastest(std::move(fit));
    std::ranges::stable_sort(result_.best, {}, [](const FoundLayout& one) { return one.time.seconds; });
    const std::span<FoundLayout> nearest(too_large.begin(),
                                         std::min(too_large.size(), kNear - std::min(kNear, result_.near.size())));
    plan_exactly("planning what nearly fits", nearest);
    std::ranges::move(nearest, std::back_inserter(result_.near));
    std::ranges::stable_sort(result_.near, {}, [](const FoundLayout& one) { return one.plan.needed_bytes(); });
    return std::move(result_);
  }

 private:
  FoundLayout found(const LayoutChoice& choice) const { return found(choice, options_.limits.gpus); }
  // The layout on another number of GPUs.
  FoundLayout found(const LayoutChoice& choice, int64_t gpus) const {
    RunConfig asked = with_layout(config_, choice);
    asked.parallel.ranks = gpus;
    RunConfig planned = asked;
    planned.parallel.threads = 1;  // hosts of GPUs compute nothing
    return {resolve(planned, {.vocabulary = options_.vocab_size}), std::move(asked)};
  }

  // The estimate of a choice, or why validation refuses it.
  struct Outcome {
    LayoutEstimate estimate = {};
    bool large = false;  // even its state does not fit
    std::string why;
  };
  Outcome outcome_of(const LayoutChoice& choice) const {
    try {
      const ResolvedConfig config = found(choice).config;
      const LayoutEstimate estimate = estimate_layout(config, cluster_, ceilings_);
      return {estimate, estimate.state_bytes + gpu_reserve_bytes(config) > options_.memory, ""};
    } catch (const ConfigError& error) {
      return {.why = error.what()};
    }
  }

  // Returns the choices that are valid and whose state fits.
  std::vector<Candidate> estimate_all() {
    const std::vector<LayoutChoice> choices = layout_choices(config_, options_.limits);
    std::vector<Outcome> outcomes(choices.size());
    for_all("estimating", choices.size(), [&](size_t i) { outcomes[i] = outcome_of(choices[i]); });
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < choices.size(); ++i) {
      const Outcome& outcome = outcomes[i];
      ++result_.considered;
      if (outcome.why.empty()) {
        (outcome.large ? large_ : candidates).push_back({choices[i], outcome.estimate});
        ++result_.possible;
      } else {
        ++result_.refused[reason_of(outcome.why)];
        result_.why.try_emplace(reason_of(outcome.why), outcome.why);
      }
    }
    if (result_.possible == 0) find_nearest_gpus();
    result_.too_large = static_cast<int64_t>(large_.size());
    return candidates;
  }

  // Whether the model has a valid layout on so many GPUs. Sharding beyond the axes and recomputation need no trial:
  // they make no layout valid.
  bool has_layout(int64_t gpus) const {
    ChoiceLimits limits = options_.limits;
    limits.gpus = gpus;
    limits.axes_alone = true;
    return std::ranges::any_of(layout_choices(config_, limits), [&](const LayoutChoice& choice) {
      try {
        found(choice, gpus);
        return true;
      } catch (const ConfigError&) {
        return false;
      }
    });
  }

  void find_nearest_gpus() {
    const int64_t asked = options_.limits.gpus;
    for (int64_t gpus = asked - 1; gpus >= 1 && result_.nearest_gpus.empty(); --gpus)
      if (has_layout(gpus)) result_.nearest_gpus.push_back(gpus);
    for (int64_t gpus = asked + 1; gpus <= 2 * asked; ++gpus)
      if (has_layout(gpus)) {
        result_.nearest_gpus.push_back(gpus);
        return;
      }
  }

  // The layouts that come nearest to fitting if not even the state of any fits.
  std::vector<LayoutChoice> least_of_the_large() {
    std::ranges::stable_sort(large_, {}, [](const Candidate& one) { return one.estimate.bytes; });
    std::vector<LayoutChoice> choices;
    for (size_t i = 0; i < std::min(large_.size(), kNear); ++i) choices.push_back(large_[i].choice);
    return choices;
  }

  // First the layouts that fit by the estimate, fastest first, then those that nearly fit. Ties keep the order of
  // layout_choices(): fewer ranks per axis, larger micro-batches, less sharding and recomputation first.
  std::vector<LayoutChoice> worth_a_plan(std::vector<Candidate> candidates) {
    const auto fits = [&](const Candidate& one) { return one.estimate.bytes <= options_.memory; };
    const auto first_large = std::ranges::stable_partition(candidates, fits).begin();
    std::ranges::stable_sort(candidates.begin(), first_large, {},
                             [](const Candidate& one) { return one.estimate.seconds; });
    std::ranges::stable_sort(first_large, candidates.end(), {},
                             [](const Candidate& one) { return one.estimate.bytes; });
    const auto small = static_cast<size_t>(first_large - candidates.begin());
    const size_t large = candidates.size() - small, room = options_.most_quick;
    const size_t take_small = std::min(small, room - std::min(large, room / 4));
    const size_t take_large = std::min(large, room - take_small);
    result_.slower = static_cast<int64_t>(small - take_small);
    result_.estimated_too_large = static_cast<int64_t>(large - take_large);
    result_.planned = static_cast<int64_t>(take_small + take_large);
    std::vector<LayoutChoice> choices;
    for (size_t i = 0; i < take_small; ++i) choices.push_back(candidates[i].choice);
    for (size_t i = 0; i < take_large; ++i) choices.push_back(candidates[small + i].choice);
    return choices;
  }

  std::vector<FoundLayout> plan_quickly(const std::vector<LayoutChoice>& choices) const {
    std::vector<FoundLayout> all;
    all.reserve(choices.size());
    for (const LayoutChoice& choice : choices) all.push_back(found(choice));
    for_all("planning", all.size(), [&](size_t i) {
      FoundLayout& one = all[i];
      one.plan = quick_plan(one.config);
      one.time = predict_step(one.plan, one.config, ceilings_, &cluster_);
    });
    return all;
  }

  // Calls work(i) for each i below `count`, in parallel on all cores.
  void for_all(const char* what, size_t count, const std::function<void(size_t)>& work) const {
    report(what, 0, count);
    Mutex mutex;
    size_t done = 0;
    ThreadPool pool(std::max(usable_cores(), 1));
    pool.run(static_cast<int64_t>(count), [&](int64_t i) {
      work(static_cast<size_t>(i));
      const MutexLock lock(mutex);
      report(what, ++done, count);
    });
  }

  void report(const char* what, size_t done, size_t of) const {
    if (options_.watch && of > 0) options_.watch(what, static_cast<int64_t>(done), static_cast<int64_t>(of));
  }

  // Plans exactly until as many fit as are shown, in batches of as many as are still missing, so that no plan is
  // wasted.
  void plan_fastest(std::vector<FoundLayout> fit) {
    auto begin = fit.begin();
    while (begin != fit.end() && result_.best.size() < options_.shown) {
      const auto lacking = static_cast<std::ptrdiff_t>(options_.shown - result_.best.size());
      const auto end = begin + std::min(lacking, fit.end() - begin);
      const std::span<FoundLayout> next(begin, end);
      plan_exactly("planning to the byte", next);
      for (FoundLayout& one : next)
        (one.plan.needed_bytes() <= options_.memory ? result_.best : result_.near).push_back(std::move(one));
      begin = end;
    }
  }

  void plan_exactly(const char* what, std::span<FoundLayout> layouts) const {
    for_all(what, layouts.size(), [&](size_t i) {
      FoundLayout& one = layouts[i];
      one.plan = make_plan(one.config, {.ranks = PlanOptions::Ranks::by_class, .spread = true});
      one.time = predict_step(one.plan, one.config, ceilings_, &cluster_);
    });
  }

  const RunConfig& config_;
  const Cluster& cluster_;
  const SearchOptions options_;
  const Ceilings ceilings_;
  std::vector<Candidate> large_;  // choices whose state does not fit
  SearchResult result_;
};

}  // namespace

SearchResult search_layouts(const RunConfig& config, const Cluster& cluster, const SearchOptions& options) {
  return LayoutSearch(config, cluster, options).run();
}

}  // namespace witan
