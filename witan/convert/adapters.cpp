#include "witan/convert/adapters.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "witan/base/error.h"
#include "witan/convert/weight_source.h"
#include "witan/nn/lora.h"

namespace witan {
namespace {

template <class T>
constexpr Element kElementOf = std::is_same_v<T, double> ? Element::f64 : Element::f32;

template <class T>
std::vector<T> widened(const HeldTensor& tensor) {
  const int64_t count = static_cast<int64_t>(tensor.bytes.size()) / size_of(tensor.type);
  std::vector<T> values(static_cast<size_t>(count));
  copy_elements(kElementOf<T>, reinterpret_cast<std::byte*>(values.data()), tensor.type, tensor.bytes.data(), 1, count);
  return values;
}

// Merges into rows [first_row, first_row + out) of each matrix.
template <class T>
void add_product(T* base, int64_t rows, const AdapterValues& adapter, T scale) {
  const AdapterTensors& of = adapter.of;
  const int64_t r = of.rank(), in = of.in(), out = of.out();
  const std::vector<T> a = widened<T>(adapter.a), b = widened<T>(adapter.b);
  std::vector<T> sum(static_cast<size_t>(in));
  for (int64_t matrix = 0; matrix < of.matrices(); ++matrix)
    for (int64_t row = 0; row < out; ++row) {
      std::ranges::fill(sum, T(0));
      for (int64_t k = 0; k < r; ++k) {
        const T factor = b[static_cast<size_t>((matrix * out + row) * r + k)];
        const T* from = a.data() + (matrix * r + k) * in;
        for (int64_t i = 0; i < in; ++i)
          sum[static_cast<size_t>(i)] = std::fma(factor, from[i], sum[static_cast<size_t>(i)]);
      }
      T* to = base + (matrix * rows + of.first_row + row) * in;
      for (int64_t i = 0; i < in; ++i) to[i] = std::fma(scale, sum[static_cast<size_t>(i)], to[i]);
    }
}

template <class T>
double norm_of_row(const T* row, int64_t in) {
  double squares = 0;
  for (int64_t i = 0; i < in; ++i) squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  return std::sqrt(squares);
}

// Gives the rows of one matrix these norms; rows of zeros stay as they are.
template <class T>
void rescale(T* base, const AdapterTensors& of, const std::vector<double>& magnitudes) {
  for (int64_t row = 0; row < of.out(); ++row) {
    T* const at = base + (of.first_row + row) * of.in();
    const double norm = norm_of_row(at, of.in());
    if (norm == 0) continue;
    const double factor = magnitudes[static_cast<size_t>(row)] / norm;
    for (int64_t i = 0; i < of.in(); ++i) at[i] = static_cast<T>(static_cast<double>(at[i]) * factor);
  }
}

template <class T>
Element merge(const HeldTensor& base, const Shape& shape, const std::vector<AdapterValues>& adapters, double scale,
              std::vector<std::byte>& to) {
  to.resize(static_cast<size_t>(shape.elements()) * sizeof(T));
  T* values = reinterpret_cast<T*>(to.data());
  copy_elements(kElementOf<T>, to.data(), base.type, base.bytes.data(), 1, shape.elements());
  for (const AdapterValues& adapter : adapters) {
    add_product(values, shape[shape.dims() - 2], adapter, static_cast<T>(scale));
    if (!adapter.of.magnitude.empty()) rescale(values, adapter.of, magnitudes_of(adapter.of, base, adapter.magnitude));
  }
  return kElementOf<T>;
}

}  // namespace

ModelConfig without_adapters(ModelConfig model) {
  const ModelConfig defaults;
  model.lora_rank = 0;
  model.lora_alpha = defaults.lora_alpha;
  model.lora_use_rslora = false;
  model.lora_use_dora = false;
  model.lora_dropout = 0;
  model.lora_target_modules.clear();
  return model;
}

std::vector<AdapterTensors> adapters_of(const ModelConfig& model) {
  std::vector<AdapterTensors> adapters;
  if (model.lora_rank == 0) return adapters;
  const std::vector<ModelTensor> tensors = tensors_of(model);
  const auto find = [&](const std::string& name) { return std::ranges::find(tensors, name, &ModelTensor::name); };
  const auto parent = [](const std::string& path) { return path.substr(0, path.rfind('.')); };
  for (const ModelTensor& tensor : tensors) {
    if (!tensor.name.ends_with(cat(".", kLoraA))) continue;
    const std::string path = parent(tensor.name);
    const auto b = find(cat(path, ".", kLoraB));
    AdapterTensors one{"", tensor.name, b->name, tensor.shape, b->shape, {}, 0, tensor.experts};
    if (tensor.experts)
      one.base = path;
    else if (find(path + ".weight") != tensors.end())
      one.base = path + ".weight";
    else
      one.base = parent(path) + ".weight";  // for a half: "….gate_up_proj.up_proj"
    if (model.lora_use_dora) one.magnitude = cat(path, ".", kLoraMagnitude);
    if (path.ends_with(".gate_up_proj.up_proj")) one.first_row = one.out();
    adapters.push_back(std::move(one));
  }
  return adapters;
}

std::vector<double> magnitudes_of(const AdapterTensors& of, const HeldTensor& base, const HeldTensor& change) {
  std::vector<double> magnitudes = widened<double>(change), row(static_cast<size_t>(of.in()));
  for (int64_t n = 0; n < of.out(); ++n) {
    const int64_t first = (of.first_row + n) * of.in() * size_of(base.type);
    copy_elements(Element::f64, reinterpret_cast<std::byte*>(row.data()), base.type, base.bytes.data() + first, 1,
                  of.in());
    magnitudes[static_cast<size_t>(n)] += norm_of_row(row.data(), of.in());
  }
  return magnitudes;
}

Element merge_adapters(const HeldTensor& base, const Shape& shape, const std::vector<AdapterValues>& adapters,
                       double scale, std::vector<std::byte>& to) {
  return base.type == Element::f64 ? merge<double>(base, shape, adapters, scale, to)
                                   : merge<float>(base, shape, adapters, scale, to);
}

}  // namespace witan
