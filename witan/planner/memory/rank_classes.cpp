#include "witan/planner/memory/rank_classes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "witan/base/threads/threads.h"
#include "witan/model/transformer.h"
#include "witan/optim/optimizer.h"
#include "witan/parallel/groups.h"
#include "witan/parallel/peers.h"
#include "witan/parallel/sharding/shard_plan.h"
#include "witan/parallel/stages.h"
#include "witan/planner/memory/meta_rank.h"

namespace witan {
namespace {

using Key = std::vector<int64_t>;  // equal for ranks of the same class

// The model as the ranks of one pipeline, tensor and expert tensor coordinate hold it, before data-parallel sharding.
class Held {
 public:
  Held(const RunConfig& config, const Layout& layout, int rank)
      : pool_(1),
        stream_({Device::Kind::meta}, Arena::meta(), pool_),
        groups_(make_meta_groups(layout, rank)),
        model_(stream_, config.model, 0, groups_.model_axes(config.parallel),
               Stages(config.parallel.stage_split(config.model.num_layers)).held_by(groups_.of(Axis::pipeline).rank())),
        groups_of_parameters_(config.optimizer),
        shard_plan_(model_.parameters(), layout, rank, BucketPlan::kElements, ShardingPolicy(config.optimizer)),
        names_owned_(layout.sharding() >= Sharding::gradients || config.train.check_states) {
    for (const Parameter* parameter : shard_plan_.parameters()) {
      for (int dim = 0; dim < parameter->shape().dims(); ++dim) shapes_.push_back(parameter->shape()[dim]);
      shapes_.insert(shapes_.end(), {-1, static_cast<int64_t>(parameter->spec().dtype), parameter->spec().copy,
                                     parameter->spec().frozen});
    }
  }

  const Key& shapes() const { return shapes_; }

  // Describes the shards owned by rank `dense` of the sharding axes and, for experts, rank `expert` of theirs. Chunks
  // of the gradient norm restart with each expert. If only the optimizer is sharded, it does not matter which
  // parameters are owned, unless the optimizer updates matrices, whose rows and columns matter then.
  Key owned(int dense, int expert) const {
    Key key;
    for (size_t i = 0; i < shard_plan_.parameters().size(); ++i) {
      const Parameter& parameter = *shard_plan_.parameters()[i];
      const ParameterSpec& spec = parameter.spec();
      const auto [first, elements] = shard_plan_.range(i, spec.expert ? expert : dense);
      if (elements == 0) continue;
      const bool named = names_owned_ || spec.tied || updates_matrices(spec);
      const int64_t piece = spec.expert ? parameter.elements() / parameter.shape()[0] : parameter.elements();
      key.insert(key.end(), {named ? static_cast<int64_t>(i) : -1, elements, spec.expert ? first % piece : 0,
                             static_cast<int64_t>(spec.dtype), spec.copy,
                             static_cast<int64_t>(groups_of_parameters_.index_of(spec)), spec.frozen});
    }
    return key;
  }

  // Elements of the owned shards, including their optimizer state.
  int64_t owned_elements(int dense, int expert) const {
    int64_t sum = 0;
    for (size_t i = 0; i < shard_plan_.parameters().size(); ++i) {
      const Parameter& parameter = *shard_plan_.parameters()[i];
      const OptimizerSettings& settings = groups_of_parameters_.of(parameter.spec()).settings;
      const auto [first, elements] = shard_plan_.range(i, parameter.spec().expert ? expert : dense);
      sum += elements;
      if (elements == 0 || parameter.spec().frozen) continue;
      for (const OptimizerStateSpec& state : optimizer_traits(settings.optimizer).state(settings))
        sum += state_of(state, settings, parameter, first, elements).elements();
    }
    return sum;
  }

 private:
  bool updates_matrices(const ParameterSpec& spec) const {
    return optimizer_traits(groups_of_parameters_.of(spec).settings.optimizer).needs == ShardBy::matrices;
  }

  ThreadPool pool_;
  Stream stream_;
  const Groups groups_;
  const Transformer model_;
  const ParamGroups groups_of_parameters_;
  const ShardPlan shard_plan_;
  bool names_owned_;  // which parameters are owned matters, not only how many elements of how many
  Key shapes_;
};

class Classifier {
 public:
  Classifier(const RunConfig& config, const Layout& layout)
      : config_(config), layout_(layout), context_work_(context_work(config)) {}

  enum class By : uint8_t { all, but_owned };
  std::vector<RankClass> classes(By by) {
    std::vector<RankClass> classes;
    std::map<Key, size_t> known;
    std::vector<int64_t> most;  // elements owned by the planned rank of each class
    for (int rank = 0; rank < layout_.world_size(); ++rank) {
      Held& held = held_by(rank);
      const int dense = layout_.sharding_rank(false, rank), expert = layout_.sharding_rank(true, rank);
      Key key = place_of(rank), owned = held.owned(dense, expert);
      key.insert(key.end(), held.shapes().begin(), held.shapes().end());
      if (by == By::all) key.insert(key.end(), owned.begin(), owned.end());
      const auto [found, fresh] = known.try_emplace(std::move(key), classes.size());
      if (fresh) {
        classes.push_back({{}, rank, true});
        most.push_back(0);
      }
      RankClass& its = classes[found->second];
      its.ranks.push_back(rank);
      if (by == By::all) continue;
      its.exact = its.exact && (fresh || owned == first_owned_[found->second]);
      if (fresh) first_owned_.push_back(std::move(owned));
      if (const int64_t elements = held.owned_elements(dense, expert); elements > most[found->second]) {
        most[found->second] = elements;
        its.planned = rank;
      }
    }
    return classes;
  }

 private:
  int at(int rank, Axis axis) const { return layout_.mesh().coordinate(rank, axis); }

  // The work of context-parallel ranks is as uneven as in the layer where it is most uneven.
  static ContextWork context_work(const RunConfig& config) {
    const ParallelConfig& parallel = config.parallel;
    ContextWork work = ContextWork::all;
    for (const LayerSpec& layer : config.model.layers())
      work = std::max(work, mixer_kind(layer.mixer)
                                .context_use(parallel.context_exchange(), parallel.tensor_model_parallel_size,
                                             parallel.context_parallel_size)
                                .work);
    return work;
  }

  // The first rank of a tensor axis keeps what the others replace by zeros. On an attention ring neighbours alternate
  // in who sends first, and a sliding window masks more pairs for some ranks than for others. Not all GPUs need to
  // reach each other's memory.
  Key place_of(int rank) const {
    const int64_t context = at(rank, Axis::context);
    return {at(rank, Axis::pipeline),
            at(rank, Axis::tensor) == 0,
            at(rank, Axis::expert_tensor) == 0,
            context_work_ == ContextWork::none        ? context
            : context_work_ == ContextWork::alternate ? context % 2
                                                      : 0,
            static_cast<int64_t>(peers_of(config_.parallel, layout_, rank)),
            tensor_peers_of(config_.parallel, layout_, rank) == PeerAccess::none,
            context_peers_of(config_.parallel, layout_, rank) == PeerAccess::none};
  }

  Held& held_by(int rank) {
    auto& held = held_[{at(rank, Axis::pipeline), at(rank, Axis::tensor), at(rank, Axis::expert_tensor)}];
    if (!held) held = std::make_unique<Held>(config_, layout_, rank);
    return *held;
  }

  const RunConfig& config_;
  const Layout& layout_;
  const ContextWork context_work_;
  std::map<Key, std::unique_ptr<Held>> held_;
  std::vector<Key> first_owned_;
};

}  // namespace

std::vector<RankClass> rank_classes(const RunConfig& config, const Layout& layout, size_t most) {
  Classifier classifier(config, layout);
  std::vector<RankClass> classes = classifier.classes(Classifier::By::all);
  return classes.size() <= most ? classes : classifier.classes(Classifier::By::but_owned);
}

}  // namespace witan
