#include "witan/nn/parameter.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "witan/base/threads/threads.h"
#include "witan/kernels/common/block_sums.h"
#include "witan/tensor/trace_context.h"

namespace witan {

ParameterSpec::Part ParameterSpec::part(int expert_ranks, int expert_rank, int tensor_ranks, int tensor_rank) const {
  Part part = whole();
  if (expert && expert_ranks > 1) {
    require<ShapeError>(shape[0] % expert_ranks == 0, name, ": ", shape[0], " experts are not divisible by ",
                        expert_ranks, " expert-parallel ranks");
    const int64_t count = shape[0] / expert_ranks;
    part = {rows_of(shape, count * expert_rank, count), shape.with(0, count)};
  }
  if (!tensor_split.any() || tensor_ranks == 1) return part;
  if (tensor_split.uneven) {
    assert(tensor_split.dim == 0 && tensor_split.blocks == 1 && !expert);
    const Piece rows = nearly_equal_piece(shape[0], tensor_ranks, tensor_rank);
    const int64_t most = (shape[0] + tensor_ranks - 1) / tensor_ranks;
    return {rows_of(shape, rows.begin, rows.size), shape.with(0, rows.size), shape.with(0, most).elements()};
  }
  const int64_t size = shape[tensor_split.dim], pieces = tensor_split.blocks * tensor_ranks;
  require<ShapeError>(size % pieces == 0, name, ": dim ", tensor_split.dim, " of ", shape, " cannot be split into ",
                      tensor_ranks, " equal parts",
                      tensor_split.blocks > 1 ? cat(" in each of its ", tensor_split.blocks, " blocks") : "");
  int64_t block = size / tensor_split.blocks;  // elements between two pieces of a rank
  for (int dim = tensor_split.dim + 1; dim < shape.dims(); ++dim) block *= shape[dim];
  return {part.region.divided(block, tensor_ranks, tensor_rank),
          part.shape.with(tensor_split.dim, size / tensor_ranks)};
}

std::string_view name_of(ParameterKind kind) {
  constexpr std::array<std::string_view, kParameterKinds> kNames = {"embeddings", "head",     "norms",  "biases",
                                                                    "routers",    "matrices", "experts"};
  return kNames[static_cast<size_t>(kind)];
}

Parameter::Parameter(ParameterSpec spec, const ParameterSpec::Part& part)
    : spec_(std::move(spec)), region_(part.region), shape_(part.shape), most_(part.most) {
  frozen = spec_.frozen;
  require<ShapeError>(region_.elements() == shape_.elements() && region_.end() <= spec_.shape.elements(), name(),
                      ": elements ", region_, " of ", spec_.shape, " as ", shape_);
  const kernels::WeightFormatTraits& format = kernels::traits_of(spec_.format);
  require<ConfigError>(!in_codes() || shape_.last() % format.group == 0, "frozen_format: ", name(), " is ", shape_,
                       " on a rank, and ", format.name, " codes rows in groups of ", format.group,
                       ": lower tensor_model_parallel_size or expert_tensor_parallel_size, or take another format");
}

Parameter::Parameter(Stream& stream, ParameterSpec spec, const ParameterSpec::Part& part, uint64_t seed,
                     TorchRandom* torch, Tensor place)
    : Parameter(std::move(spec), part) {
  const TraceContextScope named(stream, spec_.name);
  bind_value(place.defined() ? std::move(place) : stream.empty(shape_, spec_.dtype, MemoryTag::weights));
  begin(stream, {value_.reshape({elements()}), 0}, seed, torch);
}

void Parameter::throw_unacquired() const {
  throw Error(ExitCode::internal, cat(name(), " is read while its unit, ", unit_->name,
                                      ", is not acquired: a UnitGuard must stand where the unit is used"));
}

void Parameter::bind_value(Tensor whole) {
  assert(!whole.defined() || (whole.shape() == shape_ && whole.dtype() == spec_.dtype && whole.contiguous()));
  value_ = std::move(whole);
}

void Parameter::init_value_shard(Stream& stream, Tensor flat, int64_t first, uint64_t seed, TorchRandom* torch) {
  assert(first >= 0 && first + flat.elements() <= elements() && flat.dtype() == spec_.dtype);
  value_shard_ = {std::move(flat), first};
  begin(stream, value_shard_, seed, torch);
}

void Parameter::init_codes(Stream& stream, kernels::Codes codes, int64_t first, uint64_t seed, TorchRandom* torch) {
  assert(in_codes() && first >= 0 && first + codes.elements() <= elements());
  codes_ = std::move(codes);
  value_shard_.first = first;
  if (stream.is_meta()) return;
  if (spec_.init.drawn()) {
    assert(torch);
    draw_codes(stream, *torch);
  } else {
    initialize_codes(stream, seed);
  }
}

std::vector<Tensor> Parameter::kept() const {
  if (in_codes()) return {codes_.words, codes_.scales};
  return {value_shard()};
}

Tensor Parameter::part_of(const Shard& shard, const Tensor& whole, int64_t first, int64_t elements) {
  const Tensor flat = shard.flat.defined() ? shard.flat : whole.reshape({whole.elements()});
  return flat.narrow(0, first - shard.first, elements);
}

// Initial values of the shard.
void Parameter::begin(Stream& stream, const Shard& shard, uint64_t seed, TorchRandom* torch) {
  if (stream.is_meta()) return;
  if (spec_.init.drawn()) {
    assert(torch);
    draw(stream, shard, *torch);
  } else {
    initialize(stream, shard, seed);
  }
}

void Parameter::bind_gradient(Tensor gradient) {
  bind_gradient_parts({std::move(gradient)});
}

void Parameter::bind_gradient_parts(std::vector<Tensor> gradients) {
  assert(!gradients.empty());
  for (const Tensor& gradient : gradients) check_gradient(gradient);
  bind_gradients(std::move(gradients));
}

void Parameter::bind_gradients(std::vector<Tensor> gradients) {
  gradients_ = std::move(gradients);
  clear_gradient();
}

void Parameter::unbind_gradient() {
  bind_gradients(std::vector<Tensor>(1));
  if (!head_) return;
  head_->own_gradient = {};
  head_->gradient_written = false;
}

void Parameter::bind_gradient_block_sums(Tensor sums) {
  assert(!sums.defined() || (can_sum_blocks && sums.shape() == kernels::block_sums_shape(shape_)));
  block_sums_ = std::move(sums);
}

void Parameter::set_head_gradient_apart() {
  if (!head_) head_ = std::make_unique<Head>(*this);
}

void Parameter::bind_head_gradient(Tensor gradient) {
  check_gradient(gradient);
  set_head_gradient_apart();
  head_->own_gradient = std::move(gradient);
  head_->gradient_written = false;
}

void Parameter::check_gradient(const Tensor& gradient) const {
  require<ShapeError>(gradient.shape() == shape_ && gradient.contiguous() && is_floating(gradient.dtype()), name(),
                      ": a gradient is ", shape_, ", floating and contiguous, got ", gradient.dtype(), " ",
                      gradient.shape());
}

void Parameter::initial_values(const Philox& rng, int64_t local, std::span<double> values) const {
  const int64_t begun = spec_.shape.elements() - spec_.init.padding;
  for (size_t at = 0; at < values.size();) {
    const int64_t element = region_.global(local), left = static_cast<int64_t>(values.size() - at);
    const auto run = values.subspan(at, static_cast<size_t>(std::min(region_.adjacent(local), left)));
    const auto count = static_cast<int64_t>(run.size());
    if (spec_.init.kind == Initialization::Kind::normal) {
      rng.normals(static_cast<uint64_t>(element), run);
      for (double& value : run) value *= spec_.init.std;
    } else if (spec_.init.kind == Initialization::Kind::log_uniform) {
      for (int64_t i = 0; i < count; ++i)
        run[static_cast<size_t>(i)] =
            std::log(std::lerp(spec_.init.least, spec_.init.most, rng.uniform(static_cast<uint64_t>(element + i))));
    } else if (spec_.init.kind == Initialization::Kind::inverse_softplus) {
      const double least = std::log(spec_.init.least), most = std::log(spec_.init.most);
      for (int64_t i = 0; i < count; ++i) {
        const double step = std::exp(std::lerp(least, most, rng.uniform(static_cast<uint64_t>(element + i))));
        run[static_cast<size_t>(i)] = step + std::log(-std::expm1(-step));
      }
    } else {
      std::ranges::fill(run, spec_.init.kind == Initialization::Kind::ones ? 1.0 : spec_.init.value);
    }
    for (int64_t i = std::max<int64_t>(begun - element, 0); i < count; ++i) run[static_cast<size_t>(i)] = 0;
    at += run.size();
    local += count;
  }
}

void Parameter::initialize(Stream& stream, const Shard& shard, uint64_t seed) {
  const Philox rng(seed, Philox::stream_of(name()));
  constexpr int64_t kGrain = 1 << 14;
  const Tensor& to = shard.flat;
  dispatch_floating(to.dtype(), [&]<class T>() {
    // Elements [from, from + count) of the shard, to values[0 … count).
    const auto fill = [&](T* values, int64_t from, int64_t count) {
      stream.pool().for_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
        std::array<double, 512> wide{};
        for (int64_t i = begin; i < end; i += static_cast<int64_t>(wide.size())) {
          const auto some = std::span(wide).first(static_cast<size_t>(std::min(end - i, int64_t{wide.size()})));
          initial_values(rng, shard.first + from + i, some);
          std::ranges::transform(some, values + i, [](double value) { return T(value); });
        }
      });
    };
    if (!stream.is_cuda()) return fill(to.data<T>(), 0, to.elements());
    // On the host, so that a run begins with the same bits on every device.
    constexpr int64_t kPiece = 1 << 24;
    std::vector<T> piece(static_cast<size_t>(std::min(to.elements(), kPiece)));
    for (int64_t from = 0; from < to.elements(); from += kPiece) {
      const int64_t count = std::min(kPiece, to.elements() - from);
      fill(piece.data(), from, count);
      stream.write(to.narrow(0, from, count), piece.data());
    }
  });
}

void Parameter::initialize_codes(Stream& stream, uint64_t seed) {
  const Philox rng(seed, Philox::stream_of(name()));
  constexpr int64_t kPiece = 1 << 22, kGrain = 1 << 14;
  const int64_t elements = codes_.elements();
  std::vector<double> values(static_cast<size_t>(std::min(elements, kPiece)));
  for (int64_t from = 0; from < elements; from += kPiece) {
    const auto piece = std::span(values).first(static_cast<size_t>(std::min(kPiece, elements - from)));
    stream.pool().for_ranges(std::ssize(piece), kGrain, [&](int64_t begin, int64_t end) {
      initial_values(rng, shard_first() + from + begin,
                     piece.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    });
    kernels::encode_weights(stream, codes_, from, piece);
  }
}

void Parameter::draw_codes(Stream& stream, TorchRandom& random) {
  const int64_t begin = shard_first(), end = begin + codes_.elements();
  std::vector<double> drawn(static_cast<size_t>(codes_.elements()));
  draw(random, [&](int64_t first, std::span<const float> values) {
    for_overlaps(
        Region(first, static_cast<int64_t>(values.size())), region_, [&](int64_t from, int64_t mine, int64_t count) {
          for (int64_t i = std::max(mine, begin); i < std::min(mine + count, end); ++i)
            drawn[static_cast<size_t>(i - begin)] = static_cast<double>(values[static_cast<size_t>(from + i - mine)]);
        });
  });
  kernels::encode_weights(stream, codes_, 0, drawn);
}

// The generator draws the whole on every rank, those that hold nothing of it included: what comes next depends on it.
void Parameter::draw(Stream& stream, const Shard& shard, TorchRandom& random) {
  const int64_t end = shard.first + shard.flat.elements();
  dispatch_floating(shard.flat.dtype(), [&]<class T>() {
    std::vector<T> staged(stream.is_cuda() ? static_cast<size_t>(shard.flat.elements()) : 0);
    T* to = stream.is_cuda() ? staged.data() : shard.flat.data<T>();
    if (spec_.init.padding > 0) std::fill_n(to, shard.flat.elements(), T(0.0));
    const auto keep = [&](int64_t first, std::span<const float> values) {
      const Region drawn(first, static_cast<int64_t>(values.size()));
      for_overlaps(drawn, region_, [&](int64_t from, int64_t mine, int64_t count) {
        for (int64_t i = std::max(mine, shard.first); i < std::min(mine + count, end); ++i)
          to[i - shard.first] = T(values[static_cast<size_t>(from + i - mine)]);
      });
    };
    draw(random, keep);
    if (stream.is_cuda()) stream.write(shard.flat, staged.data());
  });
}

void Parameter::draw(TorchRandom& random, const TorchRandom::Sink& keep) const {
  const int64_t elements = spec_.shape.elements() - spec_.init.padding;
  if (spec_.init.kind == Initialization::Kind::torch_normal)
    random.normal(elements, keep);
  else
    random.uniform(elements, 1 / std::sqrt(static_cast<double>(spec_.init.fan_in)), keep);
}

void Parameter::draw_past(TorchRandom& random) const {
  if (spec_.init.drawn()) draw(random, [](int64_t, std::span<const float>) {});
}

}  // namespace witan
