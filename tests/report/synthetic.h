// Synthetic runs for the report's tests.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "witan/base/numbers/rng.h"
#include "witan/report/events/metrics.h"

namespace witan::synthetic {

// A temporary folder per test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "witan_report_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline double noise(int64_t i) {
  return std::sin(12.9898 * static_cast<double>(i)) * std::cos(4.1 * static_cast<double>(i * i % 1009));
}

inline StepEvent step(int64_t n, int64_t total, bool experts) {
  const double x = static_cast<double>(n) / static_cast<double>(total);
  StepEvent e;
  e.step = n;
  e.loss = 3.1 + 5.2 * std::exp(-9 * x) + 0.12 * noise(n);
  e.lr = 1e-3 * std::min(1.0, 20 * x) * (0.55 + 0.45 * std::cos(3.14159 * x));
  e.grad_norm = 0.6 + 2 * std::exp(-12 * x) + 0.15 * noise(n + 7);
  e.tokens_per_s = 9800 + 450 * noise(n + 1);
  e.gflops = 61 + 2.5 * noise(n + 1);
  e.ceiling_share = e.gflops / 96;
  e.step_s = 4096 / e.tokens_per_s;
  e.data_wait_s = n % 97 == 5 ? 0.05 : 0.0004;
  e.forward_s = 0.3 * e.step_s;
  e.backward_s = 0.6 * e.step_s;
  e.reduction_s = 0.02 * e.step_s;
  e.optimizer_s = 0.05 * e.step_s;
  e.elapsed_s = 0.42 * static_cast<double>(n);
  e.skipped = n == 3;
  if (experts) {
    e.load_balancing_loss = 1.0 + 0.6 * std::exp(-14 * x) + 0.01 * noise(n);
    e.z_loss = 0.4 + 0.8 * std::exp(-6 * x);
    e.load_max_over_mean = 1.25 + 2.2 * std::exp(-12 * x) + 0.08 * noise(n + 3);
  }
  return e;
}

inline ExpertsEvent experts(int64_t n, int64_t total, int64_t layers, int64_t count) {
  ExpertsEvent e;
  e.step = n;
  const double x = static_cast<double>(n) / static_cast<double>(total);
  for (int64_t layer = 0; layer < layers; ++layer) {
    auto& row = e.load.emplace_back();
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double bias = noise(31 * layer + 7 * i + 2), wave = noise(n / 4 + 3 * i);
      sum += row.emplace_back(std::exp((1.3 * std::exp(-7 * x) + 0.16) * bias + 0.06 * wave));
    }
    for (double& share : row) share /= sum;
  }
  return e;
}

// A finished run: a step event per step, an evaluation every tenth step, expert loads every `every` steps.
inline Metrics run(int64_t total, int64_t layers, int64_t experts_count, int64_t ranks = 2, int64_t every = 5) {
  Metrics m;
  m.run = RunEvent{"first-light",
                   "2025-03-14T09:26:53Z",
                   "5d1c0f3b9a7e42168bd0c4f7a6e3912b",
                   ranks,
                   13'650'432,
                   6'580'736,
                   4096,
                   total,
                   96};
  for (int64_t r = 0; r < ranks; ++r)
    m.memory.push_back({r,
                        {{"weights", 54'600'000},
                         {"gradients", 54'600'000},
                         {"optimizer", 109'200'000},
                         {"activations", 187'000'000 + 4'000'000 * r},
                         {"communication", 12'600'000},
                         {"workspace", 22'000'000}},
                        452'000'000 + 4'000'000 * r});
  m.baselines.push_back({"Kneser-Ney bigram", 2.604});
  for (int64_t n = 1; n <= total; ++n) {
    m.steps.push_back(step(n, total, layers > 0));
    if (layers > 0 && (n % every == 0 || total < every)) m.experts.push_back(experts(n, total, layers, experts_count));
    if (n % std::max<int64_t>(total / 10, 1) == 0) {
      const double loss = 3.22 + 5 * std::exp(-9 * static_cast<double>(n) / static_cast<double>(total));
      m.evals.push_back({n, loss, loss * 0.58});
    }
  }
  m.samples.push_back(
      {total, "The function returns",
       " the number of elements in the list, or undef if the\nargument is not a reference. In scalar context"
       " it is an error to call\nthis method before the handle was opened.\n\n=head2 Options\n\nSee L<perlrun> for "
       "more."});
  m.end = EndEvent{"finished"};
  return m;
}

}  // namespace witan::synthetic

namespace witan::test {

// Applies the changes of PlotHistory::since() to a page's data, like the page's script.
inline nlohmann::ordered_json changed_data(const nlohmann::ordered_json& old, const nlohmann::ordered_json& changes) {
  using nlohmann::ordered_json;
  if (!changes.is_structured()) return changes;
  ordered_json out = changes.is_array() ? ordered_json::array() : ordered_json::object();
  if (changes.contains("keep")) {
    out = ordered_json::array();
    for (size_t i = 0; i < changes["keep"]; ++i) out.push_back(old.at(i));  // the list must be that long
    for (const ordered_json& one : changes["then"]) out.push_back(one);
    return out;
  }
  if (changes.is_array())
    for (size_t i = 0; i < changes.size(); ++i)
      out.push_back(changed_data(old.is_array() && i < old.size() ? old[i] : nullptr, changes[i]));
  else
    for (const auto& [key, one] : changes.items())
      out[key] = changed_data(old.is_object() && old.contains(key) ? old[key] : nullptr, one);
  return out;
}

}  // namespace witan::test
