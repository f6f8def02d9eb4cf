// The features of a run's steps, in the order in which they are called, and found by their type.
#pragma once

#include <map>
#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/sharding/grad_buckets.h"
#include "witan/parallel/sharding/unit_store.h"
#include "witan/train/config/resolve.h"
#include "witan/train/step/step_feature.h"

namespace witan {

class StepFeatures {
 public:
  // Appends a feature, which is called after those before it. Each type at most once.
  template <class F, class... Args>
  F& add(Args&&... args) {
    auto feature = std::make_unique<F>(std::forward<Args>(args)...);
    F& added = *feature;
    by_type_.emplace(typeid(F), feature.get());
    all_.push_back(std::move(feature));
    return added;
  }
  // The feature of exactly this type; null: the run has none.
  template <class F>
  F* find() const {
    const auto found = by_type_.find(typeid(F));
    return found == by_type_.end() ? nullptr : static_cast<F*>(found->second);
  }

  // Calls a point of all features, in order.
  template <class... Args, class... Given>
  void call(void (StepFeature::*point)(Args...), Given&&... given) const {
    for (const auto& feature : all_) (*feature.*point)(given...);
  }
  void save(TrainState& state) const {
    for (const auto& feature : all_) feature->save(state);
  }

  const LossScaler* loss_scaler() const;  // null: losses are not scaled
  bool recordable() const;
  bool may_repeat() const;
  bool repeats(const StepReport::Result& read) const;
  std::vector<StepResult> repetitions() const;

  // Whether each of them launches all of its kernels in the next step.
  std::vector<bool> launches() const;
  void set_launches(const std::vector<bool>& all) const;

 private:
  std::vector<std::unique_ptr<StepFeature>> all_;
  std::map<std::type_index, StepFeature*> by_type_;
};

// The engine's parts that features work with. All must outlive them.
struct StepParts {
  Stream& stream;
  const Groups& groups;
  const RunConfig& config;
  Transformer& model;
  UnitStore& units;
  GradientBuckets& gradients;
  const ShardPlan& shards;
  const Optimizer& optimizer;
  const StepState& state;
};

// The features that the configuration asks for.
StepFeatures make_step_features(const StepParts& parts);

}  // namespace witan
