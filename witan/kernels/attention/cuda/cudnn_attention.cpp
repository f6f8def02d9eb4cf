// The only translation unit that includes cuDNN's frontend, whose headers take long to compile.
#include <dlfcn.h>

#include <compare>
#include <limits>
#include <map>
#include <unordered_map>
#include <vector>

#include "witan/base/error.h"
#include "witan/base/threads/mutex.h"
#include "witan/kernels/attention/attention_path.h"
#include "witan/kernels/attention/cuda/attention_backend.h"
#include "witan/kernels/pointwise/elementwise.h"
#include "witan/tensor/cuda/library.h"
#include "witan/tensor/cuda/stream.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks functions up here
}

namespace witan::kernels::cuda::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

// Loads cuDNN's library, and those that it and its frontend open by their bare names, which succeeds once they are
// loaded.
struct Loaded {
  std::string why_none, version;

  Loaded() {
    try {
      witan::cuda::Library("The CUDA runtime", {"libcudart.so.13", "libcudart.so.12"}, "the CUDA toolkit");
      const witan::cuda::Library library("cuDNN", {"libcudnn.so.9"}, "the package nvidia-cudnn-cu13");
      fe::cudnn_dlhandle = ::dlopen(library.path().c_str(), RTLD_NOW | RTLD_LOCAL);
      const auto number = fe::detail::get_backend_version();
      version = cat(number / 10000, ".", number / 100 % 100, ".", number % 100);
      witan::cuda::Library("NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}, "the CUDA toolkit");
    } catch (const std::exception& error) {
      if (version.empty()) why_none = error.what();  // few plans need NVRTC
    }
  }
};
const Loaded& loaded() {
  static const Loaded once;
  return once;
}

void check(fe::error_t status, const char* what) {
  require<DeviceError>(status.is_good(), "cuDNN's attention, ", what, ": ", status.get_message());
}
void check(cudnnStatus_t status, const char* what) {
  require<DeviceError>(status == CUDNN_STATUS_SUCCESS, "cuDNN, ", what, ": ", fe::detail::get_error_string(status));
}

// Queries of a row from some token on, and its first keys.
struct Problem {
  DType dtype;              // bfloat16 or float16
  bool backward, causal;    // causal by index; otherwise all pairs are visible
  bool repeatable;          // deterministic backward: the same bits in every call
  int64_t B, Sq, Sk, H, G;  // of queries and keys
  int64_t hd, hd_v;
  int64_t window;                 // 0: no window
  int64_t row_queries, row_keys;  // tokens per row in their tensors
  int64_t room;                   // bytes of workspace
  float scale;
  auto operator<=>(const Problem&) const = default;
  int64_t rep() const { return H / G; }
  int64_t first_query() const { return row_queries - Sq; }
};

fe::DataType_t type_of(DType dtype) {
  return dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
}

enum Operand : int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv };
bool is_of_keys(Operand operand) {
  return operand == kK || operand == kV || operand == kDk || operand == kDv;
}

bool is_of_values(Operand operand) {  // with hd_v columns
  return operand == kV || operand == kY || operand == kDy || operand == kDv;
}

// A graph for `rows` rows of the batch and `groups` groups of heads; a call runs it for each such part in turn. Parts
// are smaller than the whole only if its workspace would not fit.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // null: cuDNN cannot compute it
  int64_t rows = 0, groups = 0;
  int64_t workspace = 0, lse_bytes = 0;  // lse_bytes: of a part's lse, if the queries' lse has gaps
  int64_t scratch() const { return lse_bytes + workspace; }
};

// Describes the tensors of a part to a graph: [rows, heads, tokens, hd] within [B, tokens per row, all heads, hd].
class Describe {
 public:
  Describe(const Problem& problem, const Plan& plan) : p_(problem), plan_(plan) {}

  Attributes input(fe::graph::Graph& graph, const char* name, Operand id) const {
    auto attributes = fe::graph::Tensor_attributes().set_name(name).set_uid(id);
    place(attributes, id);
    return graph.tensor(attributes);
  }
  void output(const Attributes& tensor, Operand id) const {
    tensor->set_output(true).set_uid(id);
    place(*tensor, id);
  }
  // [rows, heads, Sq], without gaps, since parts are whole rows or within one row.
  void lse(fe::graph::Tensor_attributes& tensor) const {
    const int64_t heads = plan_.groups * p_.rep();
    tensor.set_dim({plan_.rows, heads, p_.Sq, 1})
        .set_stride({heads * p_.Sq, p_.Sq, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT)
        .set_uid(kLse);
  }

 private:
  void place(fe::graph::Tensor_attributes& tensor, Operand id) const {
    const bool keys = is_of_keys(id);
    const int64_t heads = keys ? p_.G : p_.H, row = keys ? p_.row_keys : p_.row_queries;
    const int64_t width = is_of_values(id) ? p_.hd_v : p_.hd;
    tensor.set_dim({plan_.rows, heads / p_.G * plan_.groups, keys ? p_.Sk : p_.Sq, width})
        .set_stride({row * heads * width, width, heads * width, 1})
        .set_data_type(type_of(p_.dtype));
  }

  const Problem& p_;
  const Plan& plan_;
};

template <class Options>
Options options_of(const Problem& p, const char* name) {
  auto options = Options().set_name(name).set_attn_scale(p.scale);
  if (p.causal) options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
  if (p.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(p.window));  // query < key + bound
  return options;
}

void add_forward(fe::graph::Graph& graph, const Problem& p, const Describe& describe) {
  auto options = options_of<fe::graph::SDPA_attributes>(p, "attention_forward");
  options.set_generate_stats(true);
  const auto [y, lse] = graph.sdpa(describe.input(graph, "q", kQ), describe.input(graph, "k", kK),
                                   describe.input(graph, "v", kV), options);
  describe.output(y, kY);
  lse->set_output(true);
  describe.lse(*lse);
}

void add_backward(fe::graph::Graph& graph, const Problem& p, const Describe& describe) {
  auto lse = fe::graph::Tensor_attributes().set_name("lse");
  describe.lse(lse);
  auto options = options_of<fe::graph::SDPA_backward_attributes>(p, "attention_backward");
  options.set_deterministic_algorithm(p.repeatable);
  const auto [dq, dk, dv] = graph.sdpa_backward(describe.input(graph, "q", kQ), describe.input(graph, "k", kK),
                                                describe.input(graph, "v", kV), describe.input(graph, "y", kY),
                                                describe.input(graph, "dy", kDy), graph.tensor(lse), options);
  describe.output(dq, kDq);
  describe.output(dk, kDk);
  describe.output(dv, kDv);
}

// Builds the plan for parts of this size, whatever its workspace.
Plan build(cudnnHandle_t handle, const Problem& p, int64_t rows, int64_t groups) {
  Plan plan{std::make_shared<fe::graph::Graph>(), rows, groups, 0, 0};
  plan.graph->set_io_data_type(type_of(p.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Describe describe(p, plan);
  p.backward ? add_backward(*plan.graph, p, describe) : add_forward(*plan.graph, p, describe);
  if (plan.graph->build(handle, {fe::HeurMode_t::A}).is_bad()) return {};
  plan.workspace = plan.graph->get_workspace_size();
  if (p.first_query() > 0) {
    constexpr int64_t kAligned = 256;
    const int64_t bytes = rows * groups * p.rep() * p.Sq * static_cast<int64_t>(sizeof(float));
    plan.lse_bytes = (bytes + kAligned - 1) / kAligned * kAligned;
  }
  return plan;
}

// The largest divisor of n that is at most `most`, but at least 1.
int64_t divisor(int64_t n, int64_t most) {
  int64_t d = std::clamp<int64_t>(most, 1, n);
  while (n % d != 0) --d;
  return d;
}

// The largest parts whose workspace fits: some rows of the batch, or some groups of one row.
Plan fitting_plan(cudnnHandle_t handle, const Problem& p) {
  int64_t rows = p.B, groups = p.G;
  for (;;) {
    Plan plan = build(handle, p, rows, groups);
    if (!plan.graph || plan.scratch() <= p.room) return plan;
    if (rows == 1 && groups == 1) return {};
    int64_t& part = rows > 1 ? rows : groups;
    part = divisor(part, std::min(part - 1, part * p.room / plan.scratch()));
  }
}

// Building a plan loads code, which is not allowed during a capture in the strictest mode.
class RelaxedCapture {
 public:
  RelaxedCapture() { witan::cuda::check(cudaThreadExchangeStreamCaptureMode(&mode_), "the capture mode"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A device's state. The device's ranks take turns, since a handle must be used by one thread at a time.
struct OfDevice {
  Mutex turn;
  cudnnHandle_t handle WITAN_GUARDED_BY(turn) = nullptr;
  std::map<Problem, Plan> plans WITAN_GUARDED_BY(turn);

  const Plan& plan(const Problem& problem) WITAN_REQUIRES(turn) {
    const auto known = plans.find(problem);
    if (known != plans.end()) return known->second;
    const RelaxedCapture relaxed;
    if (!handle) check(fe::detail::create_handle(&handle), "a handle");
    return plans.emplace(problem, fitting_plan(handle, problem)).first->second;
  }
};

// Never destroyed, because the driver may already be gone at the end of the program.
OfDevice& of_device(Stream& stream) {
  static Mutex mutex;
  static auto& devices = *new std::map<int, OfDevice>;
  const MutexLock lock(mutex);
  return devices[stream.device().index];
}

bool aligned(std::initializer_list<Tensor> tensors) {
  return std::ranges::all_of(tensors, [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; });
}

bool applies(Stream& stream, const AttentionPath& path) {
  return path.own == OwnAttention::no && witan::cuda::properties(stream.device().index).major >= 8 &&
         loaded().why_none.empty();
}

Problem problem_of(const AttentionInputs& in, const AttentionPath& path, bool backward) {
  const AttentionPairs pairs = *library_pairs(in);
  const int64_t Sq = in.q.size(1);
  return {.dtype = in.q.dtype(),
          .backward = backward,
          .causal = pairs.causal,
          .repeatable = backward && in.hints.repeatable,
          .B = in.q.size(0),
          .Sq = Sq - pairs.first_query,
          .Sk = pairs.keys,
          .H = in.q.size(2),
          .G = in.k.size(2),
          .hd = in.q.size(3),
          .hd_v = in.v.size(3),
          .window = pairs.window,
          .row_queries = Sq,
          .row_keys = in.k.size(1),
          .room = std::max(path.workspace, kLibraryScratch),
          .scale = static_cast<float>(in.scale)};
}

using Places = std::map<Operand, Tensor>;

// One call, divided into parts.
class Call {
 public:
  Call(Stream& stream, const Problem& problem, Places places, const Tensor& workspace = {})
      : stream_(stream), p_(problem), places_(std::move(places)), workspace_(workspace) {}

  // Returns false if there is no plan.
  bool run() {
    OfDevice& device = of_device(stream_);
    const MutexLock lock(device.turn);
    const Plan& plan = device.plan(p_);
    if (!plan.graph || (plan.scratch() > kLibraryScratch && !workspace_.defined())) return false;
    check(fe::detail::set_stream(device.handle, witan::cuda::native(stream_)), "its stream");
    if (plan.scratch() > 0) scratch_ = workspace_.defined() ? workspace_.raw() : stream_.scratch(plan.scratch());
    write_unseen();
    for (int64_t row = 0; row < p_.B; row += plan.rows)
      for (int64_t group = 0; group < p_.G; group += plan.groups) run(device, plan, row, group);
    return true;
  }

 private:
  // Writes the results of queries without keys, and the gradients of keys that no query sees.
  void write_unseen() {
    for (const auto& [operand, tensor] : places_) {
      const bool keys = is_of_keys(operand), written = p_.backward ? operand >= kDq : operand == kY;
      if (!written) continue;
      const int64_t row = tensor.elements() / p_.B * size_of(tensor.dtype()), token = row / tensor.size(1);
      const int64_t first = keys ? p_.Sk : 0, tokens = keys ? p_.row_keys - p_.Sk : p_.first_query();
      if (tokens > 0)
        witan::cuda::check(cudaMemset2DAsync(tensor.raw() + first * token, static_cast<size_t>(row), 0,
                                             static_cast<size_t>(tokens * token), static_cast<size_t>(p_.B),
                                             witan::cuda::native(stream_)),
                           "attention's unseen tokens");
    }
    if (!p_.backward && p_.first_query() > 0) fill(stream_, places_.at(kLse), -std::numeric_limits<double>::infinity());
  }

  void run(const OfDevice& device, const Plan& plan, int64_t row, int64_t group) WITAN_REQUIRES(device.turn) {
    std::unordered_map<int64_t, void*> at;
    for (const auto& [operand, tensor] : places_) at[operand] = part(operand, tensor, row, group);
    std::byte* const lse = part(kLse, places_.at(kLse), row, group);
    if (plan.lse_bytes > 0) {
      at[kLse] = scratch_;
      if (p_.backward) copy_lse(plan, scratch_, p_.Sq, lse, p_.row_queries);
    }
    check(plan.graph->execute(device.handle, at, scratch_ + plan.lse_bytes), "a call");
    if (plan.lse_bytes > 0 && !p_.backward) copy_lse(plan, lse, p_.row_queries, scratch_, p_.Sq);
  }

  // The address of a part's first element in a tensor: [B, tokens, heads, hd], or lse [B, H, tokens].
  std::byte* part(Operand operand, const Tensor& tensor, int64_t row, int64_t group) const {
    const int64_t heads = is_of_keys(operand) ? 1 : p_.rep();  // per group
    const int64_t first = is_of_keys(operand) ? 0 : p_.first_query();
    const int64_t width = is_of_values(operand) ? p_.hd_v : p_.hd;
    const int64_t elements =
        operand == kLse ? group * heads * p_.row_queries + first : (first * heads * p_.G + group * heads) * width;
    return tensor.raw() + (row * (tensor.elements() / p_.B) + elements) * size_of(tensor.dtype());
  }

  // Steps: elements between heads.
  void copy_lse(const Plan& plan, std::byte* to, int64_t to_step, const std::byte* from, int64_t from_step) const {
    constexpr auto kItem = sizeof(float);
    witan::cuda::check(
        cudaMemcpy2DAsync(to, static_cast<size_t>(to_step) * kItem, from, static_cast<size_t>(from_step) * kItem,
                          static_cast<size_t>(p_.Sq) * kItem, static_cast<size_t>(plan.rows * plan.groups * p_.rep()),
                          cudaMemcpyDeviceToDevice, witan::cuda::native(stream_)),
        "attention's lse");
  }

  Stream& stream_;
  const Problem p_;
  const Places places_;
  const Tensor workspace_;  // undefined: the stream's scratch holds it
  std::byte* scratch_ = nullptr;
};

}  // namespace

bool attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  const AttentionPath path = attention_path(in, false);
  if (!lse.defined() || !applies(stream, path) || !aligned({in.q, in.k, in.v, y})) return false;
  return Call(stream, problem_of(in, path, false), {{kQ, in.q}, {kK, in.k}, {kV, in.v}, {kY, y}, {kLse, lse}}).run();
}

bool attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  const AttentionPath path = attention_path(in, true);
  if (!applies(stream, path) || !aligned({in.q, in.k, in.v, y, dy, to.dq, to.dk, to.dv})) return false;
  return Call(stream, problem_of(in, path, true),
              {{kQ, in.q},
               {kK, in.k},
               {kV, in.v},
               {kY, y},
               {kLse, lse},
               {kDy, dy},
               {kDq, to.dq},
               {kDk, to.dk},
               {kDv, to.dv}},
              in.workspace)
      .run();
}

bool has_attention(Stream& stream, const AttentionInputs& in) {
  const AttentionPath forward = attention_path(in, false), backward = attention_path(in, true);
  if (!applies(stream, forward) || !applies(stream, backward)) return false;
  OfDevice& device = of_device(stream);
  const MutexLock lock(device.turn);
  return device.plan(problem_of(in, forward, false)).graph && device.plan(problem_of(in, backward, true)).graph;
}

std::string version() {
  return loaded().version;
}
std::string why_none() {
  return loaded().why_none;
}

}  // namespace witan::kernels::cuda::cudnn
