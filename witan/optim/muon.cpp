#include "witan/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "witan/base/error.h"
#include "witan/comm/group.h"
#include "witan/optim/matrix_pieces.h"

namespace witan {
namespace {

// Elements of a batch's matrices: enough to fill a GPU, and few enough for the caches of a CPU.
constexpr int64_t kGpuBatch = int64_t{1} << 26, kCpuBatch = int64_t{1} << 20;
constexpr double kFlopsPerByte = 150;  // FLOPs of a GPU in the time of moving a byte

std::vector<OptimizerStateSpec> momentum_state(const OptimizerSettings&) {
  return {{"muon.momentum"}};
}

double muon_cost(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
  const NewtonSchulz iteration = NewtonSchulz::of(settings.muon_coefficient_type, settings.muon_num_ns_steps);
  return 36.0 * static_cast<double>(rows) * static_cast<double>(columns) +
         iteration.least_flops(rows, columns) / kFlopsPerByte;
}

}  // namespace

const OptimizerTraits kMuonTraits = {.name = "muon",
                                     .needs = ShardBy::matrices,
                                     .state = momentum_state,
                                     .cost = muon_cost,
                                     .make = make_group_optimizer<Muon, Muon::Kind::muon>,
                                     .of_inner_matrices = true};

const OptimizerTraits kNorMuonTraits = {
    .name = "normuon",
    .needs = ShardBy::matrices,
    .state =
        [](const OptimizerSettings& settings) {
          std::vector<OptimizerStateSpec> state = momentum_state(settings);
          state.push_back({.prefix = "normuon.v", .shape = OptimizerStateSpec::Shape::rows});
          return state;
        },
    .cost = muon_cost,
    .make = make_group_optimizer<Muon, Muon::Kind::normuon>,
    .of_inner_matrices = true};

double muon_scale(const OptimizerSettings& settings, int64_t rows, int64_t columns) {
  const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
  if (settings.muon_scale_mode == "moonlight") return settings.muon_extra_scale_factor * std::sqrt(std::max(out, in));
  if (settings.muon_scale_mode == "shape_scaling") return std::sqrt(std::max(1.0, out / in));
  if (settings.muon_scale_mode == "unit_rms_norm") return std::sqrt(out / in);
  return 1;
}

bool Muon::Form::operator==(const Form& other) const {
  const auto all = [](const Form& form) {
    return std::tuple(form.whole.rows, form.whole.columns, form.piece.rows, form.piece.columns, form.columns_divided,
                      form.dtype, form.pieces);
  };
  return all(*this) == all(other);
}

int64_t Muon::Form::ranks() const {
  return pieces == nullptr ? 1 : pieces->size();
}

Muon::Muon(Kind kind, const ParamGroup& group, size_t index, Stream& stream,
           std::vector<ParameterShard> parameter_shards)
    : GroupOptimizer(group, index, stream, std::move(parameter_shards)),
      kind_(kind),
      settings_(group.settings),
      iteration_(NewtonSchulz::of(settings_.muon_coefficient_type, settings_.muon_num_ns_steps)) {
  plan_batches(stream);
}

Muon::Form Muon::form_of(Stream& stream, const ParameterShard& part) const {
  const ParameterSpec& spec = part.parameter->spec();
  const int stack = spec.expert ? 1 : 0;
  require<ConfigError>(spec.shape.dims() == stack + 2, "optimizer = ", settings_.optimizer, ": ", spec.name, " ",
                       spec.shape, " is not a matrix; give its parameter group optimizer = \"adam\"");
  Form form;
  form.whole = matrix_size(spec);
  form.piece = matrices_of(*part.parameter, part.first, part.elements).piece;
  form.dtype = stream.plans_for_cuda() ? kernels::muon_direction_dtype(spec.dtype) : accumulator(spec.dtype);
  form.pieces = part.pieces;
  form.columns_divided = spec.tensor_split.dim == stack + 1;
  if (spec.tensor_split.dim == stack) {
    form.whole.rows /= spec.tensor_split.blocks;
    form.piece.rows /= spec.tensor_split.blocks;
  }
  require<ConfigError>(form.columns_divided || form.whole.rows % form.ranks() == 0, "optimizer = ", settings_.optimizer,
                       ": the ", form.whole.rows, " rows of ", spec.name, " are divided unevenly over ", form.ranks(),
                       " tensor-parallel ranks; give its parameter group optimizer = \"adam\", or choose a size that "
                       "tensor_model_parallel_size divides");
  return form;
}

// The largest batch of `matrices` matrices of a form.
int64_t Muon::batch_size(Stream& stream, const Form& form, int64_t matrices) {
  const bool on_gpu = stream.plans_for_cuda();
  const int64_t fit = std::max<int64_t>((on_gpu ? kGpuBatch : kCpuBatch) / form.whole.elements(), 1);
  if (!on_gpu) return fit * form.ranks();
  const int64_t own = (matrices + form.ranks() - 1) / form.ranks();  // that a rank iterates on
  return kernels::hopper_gram_batch(std::min(form.whole.rows, form.whole.columns), own, fit) * form.ranks();
}

// Batches follow the order of the model, the same on all ranks that have pieces of the same matrices.
void Muon::plan_batches(Stream& stream) {
  std::vector<std::pair<Form, int64_t>> forms;  // with the number of matrices of each
  for (const Shard& shard : shards()) {
    const Form form = form_of(stream, shard.part);
    auto known = std::ranges::find(forms, form, &std::pair<Form, int64_t>::first);
    if (known == forms.end()) known = forms.insert(known, {form, 0});
    known->second += shard.part.elements / form.piece.elements();
  }
  for (size_t i = 0; i < shards().size(); ++i) {
    const ParameterShard& part = shards()[i].part;
    const Form form = form_of(stream, part);
    const int64_t most =
        batch_size(stream, form, std::ranges::find(forms, form, &std::pair<Form, int64_t>::first)->second);
    const int64_t all = part.elements / form.piece.elements();
    for (int64_t first = 0; first < all;) {
      auto batch =
          std::ranges::find_if(batches_, [&](const auto& one) { return one.form == form && one.matrices < most; });
      if (batch == batches_.end()) batch = batches_.insert(batch, {form, {}, 0, {}, {}});
      const int64_t fits = std::min(all - first, most - batch->matrices);
      batch->runs.push_back({i, first, fits});
      batch->matrices += fits;
      first += fits;
    }
  }
  for (Batch& batch : batches_)
    for (auto* table : {&batch.momentum_table, &batch.update_table})
      table->emplace(stream, static_cast<int64_t>(batch.runs.size()) * kernels::kMuonColumns, MemoryTag::optimizer);
}

std::vector<kernels::MuonItem> Muon::items_of(const Batch& batch, const Tensor& direction,
                                              const Tensor& orthogonal) const {
  std::vector<kernels::MuonItem> items;
  const auto& [whole, piece, columns_divided, dtype, pieces] = batch.form;
  int64_t at = 0;  // of the batch
  for (const Run& run : batch.runs) {
    const Shard& shard = shards()[run.shard];
    const int64_t elements = run.matrices * piece.elements();
    const auto of_shard = [&](const Tensor& flat) {
      return flat.defined() ? flat.narrow(0, run.first * piece.elements(), elements) : flat;
    };
    const auto of_batch = [&](const Tensor& tensor) {
      return tensor.defined() ? tensor.narrow(0, at, run.matrices).reshape({elements}) : tensor;
    };
    items.push_back({.value = of_shard(shard.value()),
                     .remainder = of_shard(shard.remainder),
                     .momentum = of_shard(shard.state[0].tensor),
                     .gradient = of_shard(shard.gradient()),
                     .direction = of_batch(direction),
                     .orthogonal = of_batch(orthogonal),
                     .weight_decay = shard.weight_decay,
                     .scale = muon_scale(settings_, whole.rows, whole.columns)});
    at += run.matrices;
  }
  return items;
}

void Muon::update_shards(Stream& stream, const Tensor& step, int64_t rate) {
  for (Batch& batch : batches_) update_batch(stream, batch, step, rate);
}

void Muon::update_batch(Stream& stream, Batch& batch, const Tensor& step, int64_t rate) {
  const Form& form = batch.form;
  const int64_t ranks = form.ranks(), padded = (batch.matrices + ranks - 1) / ranks * ranks;
  const kernels::MuonArgs args{settings_.muon_momentum, settings_.muon_nesterov, rate};
  Tensor x = stream.empty({padded, form.piece.rows, form.piece.columns}, form.dtype, MemoryTag::workspace);
  if (padded > batch.matrices) stream.zero(x.narrow(0, batch.matrices, padded - batch.matrices));
  {
    const auto items = items_of(batch, x, {});
    kernels::muon_momentum(stream, items, batch.momentum_table->holding(stream, kernels::muon_table(items)), step,
                           args);
  }
  const MatrixPieces pieces(form.pieces, form.piece, form.columns_divided);
  x = pieces.to_owners(stream, x);
  x = orthogonalize(stream, std::move(x), iteration_);
  x = pieces.from_owners(stream, x);
  if (kind_ == Kind::normuon) normalize_rows(stream, batch, x, step);
  const auto items = items_of(batch, {}, x);
  kernels::muon_update(stream, items, batch.update_table->holding(stream, kernels::muon_table(items)), step, args);
}

// Every rank keeps the second moments of the rows of which it has pieces, and gets the sums over other ranks' pieces
// from them.
void Muon::normalize_rows(Stream& stream, const Batch& batch, const Tensor& orthogonal, const Tensor& step) const {
  const auto& [whole, piece, columns_divided, dtype, pieces] = batch.form;
  const Tensor x = orthogonal.narrow(0, 0, batch.matrices);
  const auto empty = [&](const Shape& shape) { return stream.empty(shape, DType::f64, MemoryTag::workspace); };
  const Tensor squares = empty({batch.matrices, piece.rows}), factors = empty(squares.shape());
  const Tensor totals = empty({batch.matrices, 2});
  kernels::row_squares(stream, squares.reshape({squares.elements()}), x.reshape({squares.elements(), piece.columns}));
  if (pieces != nullptr && columns_divided) pieces->all_reduce(stream, squares);
  int64_t at = 0;
  for (const Run& run : batch.runs) {
    const auto of = [&](const Tensor& tensor) { return tensor.narrow(0, at, run.matrices); };
    const Tensor v = shards()[run.shard].state[1].tensor.narrow(0, run.first * piece.rows, run.matrices * piece.rows);
    kernels::normuon_moments(stream, {v.reshape({run.matrices, piece.rows}), of(factors), of(totals), of(squares)},
                             step, {settings_.normuon_beta2, whole.columns});
    at += run.matrices;
  }
  if (pieces != nullptr && !columns_divided) pieces->all_reduce(stream, totals);
  kernels::scale_rows(stream, x, factors, totals);
}

}  // namespace witan
