#include "witan/train/weights/upcycle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "witan/base/error.h"
#include "witan/base/numbers/rng.h"
#include "witan/base/text.h"
#include "witan/base/threads/threads.h"
#include "witan/checkpoint/store.h"
#include "witan/moe/layer/moe.h"
#include "witan/parallel/groups.h"
#include "witan/tensor/host.h"
#include "witan/train/config/saved_config.h"
#include "witan/train/state/named_checkpoint.h"

namespace witan {
namespace {

// Throws ConfigError unless the two models differ only in their MLPs. The key `passed_over` is not compared.
void check_model(const Checkpoint& dense, const RunConfig& config, std::string_view passed_over = {}) {
  static const std::set<std::string_view> kFree = {
      "dtype",          "init_method",       "init_method_std",     "recompute_granularity", "recompute_modules",
      "hidden_dropout", "attention_dropout", "neftune_noise_alpha", "ffn_hidden_size"};
  RunConfig was = config_of(dense), is = config;
  require<ConfigError>(was.model.moe.num_experts == 0, "upcycle = ", config.train.upcycle, ": ", dense.folder.string(),
                       " has experts already (num_experts = ", was.model.moe.num_experts,
                       "); upcycling starts from a dense model");
  require<ConfigError>(!config.model.moe.moe_parallel_mlp, "upcycle = ", config.train.upcycle,
                       " makes experts from dense MLPs, and moe_parallel_mlp = true keeps an MLP beside them, which "
                       "would double each layer's output; set moe_parallel_mlp = false");
  require<ConfigError>(!config.model.use_double_wide_mlp, "upcycle = ", config.train.upcycle,
                       " makes experts of one width, and use_double_wide_mlp = true gives dense MLPs two; set "
                       "use_double_wide_mlp = false");
  const Fields before = was.fields(), now = is.fields();
  for (size_t i = 0; i < now.size(); ++i)
    require<ConfigError>(now[i].section != "model" || kFree.contains(now[i].name) || now[i].name == passed_over ||
                             before[i].text() == now[i].text(),
                         "upcycle = ", config.train.upcycle, ": the dense model has ", now[i].name, " = ",
                         before[i].text(), ", this run ", now[i].text(), "; set ", flag_name(now[i].name), " to that");
}

// The sum of a token's expert weights: exact if they are normalised, else that of a uniform router.
double weight_sum(const MoeConfig& moe) {
  using kernels::Scores;
  const kernels::Scoring scoring = moe.scoring();
  const auto K = static_cast<double>(moe.moe_router_topk), E = static_cast<double>(moe.num_experts);
  const bool alone = kernels::scores_each_alone(scoring.scores);
  double sum = 1;
  if (scoring.scores == Scores::softmax) sum = K / E;
  if (alone && !scoring.divides(moe.moe_router_topk))  // the scores of logits of 0
    sum = K * (scoring.scores == Scores::sigmoid ? 0.5 : std::sqrt(std::log(2.0)));
  return scoring.scaling * sum;
}

struct Moments {
  double mean = 0, deviation = 0;
};

template <class Visit>
Moments moments_of(const Visit& visit) {
  double count = 0, sum = 0, squares = 0;
  visit([&](double value) {
    ++count;
    sum += value;
  });
  const double mean = sum / std::max(count, 1.0);
  visit([&](double value) { squares += (value - mean) * (value - mean); });
  return {mean, std::sqrt(squares / std::max(count, 1.0))};
}

// The hidden units (of n) that an expert draws anew: the `count` with the smallest random keys, the same in all its
// matrices.
std::vector<bool> dropped_units(uint64_t seed, int64_t layer, int64_t expert, int64_t n, int64_t count) {
  const Philox rng(seed, Philox::stream_of(cat("upcycle.drop.", layer)));
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t unit) { return std::pair(rng.bits(static_cast<uint64_t>(expert * n + unit)), unit); };
  std::ranges::sort(order, {}, key);
  std::vector<bool> dropped(static_cast<size_t>(n), false);
  for (int64_t i = 0; i < count; ++i) dropped[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  return dropped;
}

}  // namespace

// Computes the elements of one stack of expert matrices from the dense matrix.
struct Upcycling::Making {
  bool second;              // the down projection, whose columns are the units
  int64_t units, of_dense;  // f, F
  int64_t width, blocks;    // D; 2 for gate and up, else 1
  int64_t slices;
  double scale, noise;
  const std::vector<double>& dense;
  Philox noises, draws;
  std::map<int64_t, std::vector<bool>> dropped = {};      // by expert
  std::map<int64_t, std::vector<Moments>> drawn_as = {};  // by expert, for each block

  int64_t rows() const { return second ? width : blocks * units; }
  int64_t columns() const { return second ? units : width; }

  // The element of the dense matrix for this row and column of an expert.
  int64_t place(int64_t expert, int64_t row, int64_t column) const {
    const int64_t first = expert % slices * units;
    if (second) return row * of_dense + first + column;
    return (row / units * of_dense + first + row % units) * width + column;
  }
  double operator()(int64_t element) const {
    const int64_t each = rows() * columns(), expert = element / each, row = element % each / columns(),
                  column = element % columns(), unit = second ? column : row % units;
    double value = dense[static_cast<size_t>(place(expert, row, column))];
    if (const auto own = dropped.find(expert); own != dropped.end() && own->second[static_cast<size_t>(unit)]) {
      const Moments& as = drawn_as.at(expert)[static_cast<size_t>(second ? 0 : row / units)];
      value = as.mean + as.deviation * draws.normal(static_cast<uint64_t>(element));
    }
    if (noise > 0) value += noise * noises.normal(static_cast<uint64_t>(element));
    return second ? value * scale : value;
  }
  void drop(int64_t expert, std::vector<bool> which) {
    for (int64_t block = 0; block < (second ? 1 : blocks); ++block)
      drawn_as[expert].push_back(moments_of([&](const auto& take) {
        for (int64_t unit = 0; unit < units; ++unit)
          for (int64_t i = 0; which[static_cast<size_t>(unit)] && i < width; ++i)
            take(dense[static_cast<size_t>(second ? place(expert, i, unit) : place(expert, block * units + unit, i))]);
      }));
    dropped[expert] = std::move(which);
  }
};

Upcycling::Upcycling(const RunConfig& config) : config_(config), dense_(open_dense_model(config.train, warnings_)) {
  check_model(dense_, config_);
  map_tensors();
  scale_ = static_cast<double>(slices_) / weight_sum(config.model.moe);
}

Checkpoint open_dense_model(const TrainConfig& train, std::vector<std::string>& warnings) {
  const std::string asked = cat("upcycle = ", train.upcycle, ": ");
  auto found = find_named(train.upcycle, train.runs_folder, asked, warnings);
  require<CheckpointError>(found.has_value(), asked, "there is neither a checkpoint, nor a run in ", train.runs_folder,
                           ", of that name; give the folder of either, or NAME, NAME@best or NAME@STEP of a run");
  return std::move(*found);
}

Checkpoint check_dense_model(const RunConfig& config, std::vector<std::string>& warnings) {
  Checkpoint dense = open_dense_model(config.train, warnings);
  check_model(dense, config, "vocab_size");
  return dense;
}

Upcycling::~Upcycling() = default;

// Finds the source of every parameter of the MoE model, and checks that every tensor of the dense model is one.
void Upcycling::map_tensors() {
  ThreadPool pool(1);
  Stream stream({Device::Kind::meta}, Arena::meta(), pool);
  ParallelConfig alone;
  alone.ranks = alone.expert_model_parallel_size = 1;
  const Groups groups = make_meta_groups(Layout(alone, 1, config_.model.moe.num_experts), 0);
  const Transformer whole(stream, config_.model, 0, groups.model_axes(alone));
  std::set<std::string> used;
  for (const Parameter* parameter : whole.parameters()) {
    const std::string& name = parameter->name();
    Target target{Part::whole, name, 0, parameter->spec()};
    if (const size_t moe = name.find(".moe."); moe != std::string::npos) {
      map_expert(target, name.substr(0, moe), name.substr(moe + 5));
    } else {
      const auto found = dense_.manifest.tensors.find(name);
      require<CheckpointError>(found != dense_.manifest.tensors.end(), dense_.folder.string(), " holds no tensor \"",
                               name, "\", which the MoE model has");
      require<CheckpointError>(found->second.shape == parameter->global_shape(), dense_.folder.string(), ": \"", name,
                               "\" is ", found->second.shape, ", the MoE model has ", parameter->global_shape());
    }
    used.insert(target.source);
    targets_.emplace(name, std::move(target));
  }
  for (const auto& [name, entry] : dense_.manifest.tensors)
    require<CheckpointError>(!StateTensor::is_of_model(entry.kind) || used.contains(name), dense_.folder.string(),
                             " holds \"", clipped(name), "\", which the MoE model has no place for: it would be lost");
}

// Maps layers.N.moe.PROJECTION to its source.
void Upcycling::map_expert(Target& target, const std::string& block, const std::string& projection) {
  target.layer = std::stoll(block.substr(block.rfind('.') + 1));
  const MoeConfig& moe = config_.model.moe;
  if (projection == "router.weight") {
    target = {Part::router, "", target.layer, target.spec};
    return;
  }
  constexpr std::string_view kExperts = "experts.";
  const std::string matrix = projection.starts_with(kExperts) ? projection.substr(kExperts.size()) : "";
  const bool second = matrix == "down_proj";
  require<CheckpointError>(second || matrix == "gate_up_proj" || matrix == "up_proj",
                           "upcycle = ", config_.train.upcycle, ": a dense model has nothing that ", target.spec.name,
                           " could be made from; start without it");
  target.part = second ? Part::second : Part::first;
  target.source = cat(block, ".mlp.", matrix, ".weight");
  const auto found = dense_.manifest.tensors.find(target.source);
  require<CheckpointError>(found != dense_.manifest.tensors.end(), dense_.folder.string(), " holds no tensor \"",
                           target.source, "\", from which ", target.spec.name, " would be made");
  const MlpConfig mlp = config_.model.layers()[static_cast<size_t>(target.layer)].mlp;
  const int64_t f = mlp.ffn_hidden_size, blocks = mlp.first_rows() / f, D = config_.model.hidden_size;
  const Shape& dense = found->second.shape;
  const int64_t F = dense.dims() == 2 ? (second ? dense[1] : dense[0] / blocks) : 0;
  require<CheckpointError>(dense == (second ? Shape{D, F} : Shape{blocks * F, D}), dense_.folder.string(), ": \"",
                           target.source, "\" is ", dense, ", which is no matrix of an MLP of width ", D);
  const bool granular = config_.train.upcycle_method == "granular";
  require<ConfigError>(granular ? F % f == 0 : F == f, "upcycle_method = ", config_.train.upcycle_method,
                       ": the dense model's MLPs have ", F, " hidden units, experts have ", f,
                       granular ? ", which do not divide them"
                                : "; set moe_ffn_hidden_size to that, or "
                                  "upcycle_method = granular for slices");
  slices_ = F / f;
  const auto check = [&](const char* key, int64_t count) {
    require<ConfigError>(count % slices_ == 0, key, " = ", count, " is no multiple of the ", slices_,
                         " slices (dense hidden units / moe_ffn_hidden_size) that make up a copy of the dense MLP");
  };
  check("num_experts", moe.num_experts);
  check("moe_router_topk", moe.moe_router_topk);
}

// The whole tensor as float64, from its float32 masters if there are any.
std::vector<double> Upcycling::read(const std::string& name) {
  const auto& [key, entry] = *dense_.manifest.master_or_value(name);
  Shards shards(dense_.folder, dense_.manifest);
  std::vector<double> values(static_cast<size_t>(entry.shape.elements()));
  for (const Manifest::Part& part : entry.parts) {
    const std::span<const std::byte> bytes = shards.bytes_of(key, entry, part);
    dispatch_floating(entry.dtype, [&]<class T>() {
      for (int64_t i = 0; i < part.region.elements(); ++i) {
        T value;
        std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
        values[static_cast<size_t>(part.region.global(i))] = static_cast<double>(value);
      }
    });
    release_pages(bytes);
  }
  if (const auto bad = std::ranges::count_if(values, [](double value) { return !std::isfinite(value); }); bad > 0)
    non_finite_[name] = bad;
  return values;
}

// Writes value(e) for each element e, an index into the global tensor.
template <class Value>
void Upcycling::write(Stream& stream, const StateTensor& to, const Value& value) const {
  constexpr int64_t kPiece = int64_t{1} << 20, kGrain = 1 << 14;
  const bool joined = to.remainder.defined();
  dispatch_floating(joined ? DType::f32 : to.local.dtype(), [&]<class T>() {
    std::vector<T> piece(static_cast<size_t>(std::min(kPiece, to.region.elements())));
    for (int64_t first = 0; first < to.region.elements(); first += kPiece) {
      const int64_t count = std::min(kPiece, to.region.elements() - first);
      stream.pool().for_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) piece[static_cast<size_t>(i)] = T(value(to.region.global(first + i)));
      });
      if (joined)
        split_from_host(to.local, to.remainder, first, reinterpret_cast<const std::byte*>(piece.data()), count);
      else
        copy_from_host(to.local, first * static_cast<int64_t>(sizeof(T)), piece.data(),
                       count * static_cast<int64_t>(sizeof(T)));
    }
  });
}

void Upcycling::make_expert(Stream& stream, const StateTensor& to, const Target& target) {
  const MlpConfig mlp = config_.model.layers()[static_cast<size_t>(target.layer)].mlp;
  const TrainConfig& train = config_.train;
  const auto seed = static_cast<uint64_t>(train.seed);
  const int64_t f = mlp.ffn_hidden_size;
  double noise = 0;
  if (train.upcycle_noise > 0)
    noise = train.upcycle_noise * moments_of([&](const auto& take) {
                                    for (const double value : values_) take(value);
                                  }).deviation;
  Making making{.second = target.part == Part::second,
                .units = f,
                .of_dense = f * slices_,
                .width = config_.model.hidden_size,
                .blocks = mlp.first_rows() / f,
                .slices = slices_,
                .scale = scale_,
                .noise = noise,
                .dense = values_,
                .noises = Philox(seed, Philox::stream_of("upcycle.noise." + target.spec.name)),
                .draws = Philox(seed, Philox::stream_of("upcycle.draw." + target.spec.name))};
  const int64_t each = making.rows() * making.columns();
  if (train.upcycle_method == "drop" && to.region.elements() > 0)
    for (int64_t expert = to.region.first() / each; expert <= (to.region.end() - 1) / each; ++expert)
      making.drop(expert, dropped_units(seed, target.layer, expert, f,
                                        std::llround(train.upcycle_drop_ratio * static_cast<double>(f))));
  write(stream, to, making);
}

void Upcycling::fill(Stream& stream, const std::vector<StateTensor>& state) {
  for (const StateTensor& to : state) {
    if (to.kind != StateTensor::Kind::value && to.kind != StateTensor::Kind::master) continue;
    const Target& target = targets_.at(to.parameter());
    if (target.part == Part::router) {
      const Initialization& init = target.spec.init;
      require<ConfigError>(slices_ == 1 || init.kind == Initialization::Kind::normal,
                           "upcycle_method = granular draws routers whose rows are equal within a copy, which "
                           "init_method = torch cannot: use init_method = normal");
      if (slices_ == 1) continue;
      const Philox rng(static_cast<uint64_t>(config_.train.seed), Philox::stream_of(target.spec.name));
      const int64_t D = target.spec.shape[1];
      write(stream, to, [&](int64_t element) {
        const int64_t row = element / D / slices_ * slices_;
        return rng.normal(static_cast<uint64_t>(row * D + element % D)) * init.std;
      });
      continue;
    }
    if (read_ != target.source) {
      values_ = read(target.source);
      read_ = target.source;
    }
    if (target.part == Part::whole)
      write(stream, to, [&](int64_t element) { return values_[static_cast<size_t>(element)]; });
    else
      make_expert(stream, to, target);
  }
}

}  // namespace witan
