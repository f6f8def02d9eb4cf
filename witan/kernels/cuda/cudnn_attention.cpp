// The one translation unit that knows cuDNN's frontend: its headers take long to compile.
#include "witan/kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>

#include <compare>
#include <map>
#include <mutex>
#include <unordered_map>

#include "witan/base/error.h"
#include "witan/tensor/cuda/library.h"
#include "witan/tensor/cuda/stream.h"

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend looks functions up
}

namespace witan::kernels::cuda::cudnn {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

constexpr int64_t kLeastSequence = 64;                                           // shorter ones are not worth a plan
constexpr int64_t kWorkspaceBytes = Stream::kScratchBytes - (int64_t{1} << 20);  // what a plan may take

// cuDNN's library, and those that it and its frontend open by their bare names, which succeeds once they are loaded.
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
      if (version.empty()) why_none = error.what();  // NVRTC is wanted by few plans
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

struct Problem {
  bool backward;
  int64_t B, S, H, G, hd;
  float scale;
  auto operator<=>(const Problem&) const = default;
  int64_t rep() const { return H / G; }
};

enum Operand : int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv };

// A graph for `rows` rows of the batch and `groups` groups of heads; a call runs it for each such part in turn. Parts
// are smaller than the whole where its workspace would not fit.
struct Plan {
  std::shared_ptr<fe::graph::Graph> graph;  // null: cuDNN cannot
  int64_t rows = 0, groups = 0, workspace = 0;
};

// Describes the tensors of a part to a graph: [rows, heads, S, hd] within [B, S, heads of all, hd].
class Describe {
 public:
  Describe(const Problem& problem, const Plan& plan) : p_(problem), plan_(plan) {}

  Attributes input(fe::graph::Graph& graph, const char* name, Operand id, int64_t heads) const {
    auto attributes = fe::graph::Tensor_attributes().set_name(name).set_uid(id);
    place(attributes, heads);
    return graph.tensor(attributes);
  }
  void output(const Attributes& tensor, Operand id, int64_t heads) const {
    tensor->set_output(true).set_uid(id);
    place(*tensor, heads);
  }
  // [rows, heads, S]: parts are whole rows, or of one row, so that it has no gaps.
  void lse(fe::graph::Tensor_attributes& tensor) const {
    const int64_t heads = plan_.groups * p_.rep();
    tensor.set_dim({plan_.rows, heads, p_.S, 1})
        .set_stride({heads * p_.S, p_.S, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT)
        .set_uid(kLse);
  }

 private:
  void place(fe::graph::Tensor_attributes& tensor, int64_t heads) const {
    tensor.set_dim({plan_.rows, heads / p_.G * plan_.groups, p_.S, p_.hd})
        .set_stride({p_.S * heads * p_.hd, p_.hd, heads * p_.hd, 1})
        .set_data_type(fe::DataType_t::BFLOAT16);
  }

  const Problem& p_;
  const Plan& plan_;
};

void add_forward(fe::graph::Graph& graph, const Problem& p, const Describe& describe) {
  const auto options = fe::graph::SDPA_attributes()
                           .set_name("attention_forward")
                           .set_generate_stats(true)
                           .set_attn_scale(p.scale)
                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                           .set_diagonal_band_right_bound(0);
  const auto [y, lse] = graph.sdpa(describe.input(graph, "q", kQ, p.H), describe.input(graph, "k", kK, p.G),
                                   describe.input(graph, "v", kV, p.G), options);
  describe.output(y, kY, p.H);
  lse->set_output(true);
  describe.lse(*lse);
}

void add_backward(fe::graph::Graph& graph, const Problem& p, const Describe& describe) {
  const auto options = fe::graph::SDPA_backward_attributes()
                           .set_name("attention_backward")
                           .set_attn_scale(p.scale)
                           .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                           .set_diagonal_band_right_bound(0);
  auto lse = fe::graph::Tensor_attributes().set_name("lse");
  describe.lse(lse);
  const auto [dq, dk, dv] = graph.sdpa_backward(
      describe.input(graph, "q", kQ, p.H), describe.input(graph, "k", kK, p.G), describe.input(graph, "v", kV, p.G),
      describe.input(graph, "y", kY, p.H), describe.input(graph, "dy", kDy, p.H), graph.tensor(lse), options);
  describe.output(dq, kDq, p.H);
  describe.output(dk, kDk, p.G);
  describe.output(dv, kDv, p.G);
}

// The plan for parts of such a size, whatever its workspace.
Plan build(cudnnHandle_t handle, const Problem& p, int64_t rows, int64_t groups) {
  Plan plan{std::make_shared<fe::graph::Graph>(), rows, groups, 0};
  plan.graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const Describe describe(p, plan);
  p.backward ? add_backward(*plan.graph, p, describe) : add_forward(*plan.graph, p, describe);
  if (plan.graph->build(handle, {fe::HeurMode_t::A}).is_bad()) return {};
  plan.workspace = plan.graph->get_workspace_size();
  return plan;
}

// The largest divisor of n that is at most `most`, and 1 at least.
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
    if (!plan.graph || plan.workspace <= kWorkspaceBytes) return plan;
    if (rows == 1 && groups == 1) return {};
    int64_t& part = rows > 1 ? rows : groups;
    part = divisor(part, std::min(part - 1, part * kWorkspaceBytes / plan.workspace));
  }
}

// Building a plan loads code, which a capture in its strictest mode would not allow beside it.
class RelaxedCapture {
 public:
  RelaxedCapture() { witan::cuda::check(cudaThreadExchangeStreamCaptureMode(&mode_), "the capture mode"); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What a device keeps. Its ranks take turns: a handle is one thread's at a time.
struct OfDevice {
  std::mutex turn;
  cudnnHandle_t handle = nullptr;
  std::map<Problem, Plan> plans;

  // With `turn` held.
  const Plan& plan(const Problem& problem) {
    const auto known = plans.find(problem);
    if (known != plans.end()) return known->second;
    const RelaxedCapture relaxed;
    if (!handle) check(fe::detail::create_handle(&handle), "a handle");
    return plans.emplace(problem, fitting_plan(handle, problem)).first->second;
  }
};

// Never destroyed: at the end of the program the driver may have gone before.
OfDevice& of_device(Stream& stream) {
  static std::mutex mutex;
  static auto& devices = *new std::map<int, OfDevice>;
  const std::lock_guard lock(mutex);
  return devices[stream.device().index];
}

bool aligned(std::initializer_list<Tensor> tensors) {
  return std::ranges::all_of(tensors, [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; });
}

bool applies(Stream& stream, const AttentionInputs& in) {
  const int64_t hd = in.q.size(3);
  // Where queries and keys stand at the same positions, which rise, causal by position is causal by index.
  const bool square = in.block.queries == in.block.keys && in.k.size(1) == in.q.size(1);
  return square && in.q.dtype() == DType::bf16 && !in.hints.repeatable && !in.dropout.on() && hd % 8 == 0 &&
         hd <= 128 && in.q.elements() > 0 && in.q.size(1) >= kLeastSequence &&
         (in.hints.one_sequence_per_row || !in.sequence_ids.defined()) &&
         witan::cuda::properties(stream.device().index).major >= 8 && loaded().why_none.empty();
}

Problem problem_of(const AttentionInputs& in, bool backward) {
  return {backward, in.q.size(0), in.q.size(1), in.q.size(2), in.k.size(2), in.q.size(3), static_cast<float>(in.scale)};
}

// Where the parts of a tensor of one floating dtype or of lse begin.
struct Place {
  Tensor tensor;
  int64_t row, group;  // elements between rows of the batch, and between groups
};
using Places = std::map<Operand, Place>;

Places places_of(const Problem& p, const AttentionInputs& in, const Tensor& y, const Tensor& lse) {
  const int64_t queries = p.rep() * p.hd, row = p.S * p.hd;
  return {{kQ, {in.q, row * p.H, queries}},
          {kK, {in.k, row * p.G, p.hd}},
          {kV, {in.v, row * p.G, p.hd}},
          {kY, {y, row * p.H, queries}},
          {kLse, {lse, p.H * p.S, p.rep() * p.S}}};
}

// Runs the plan for every part; false where there is none.
bool run(Stream& stream, const Problem& p, const Places& places) {
  OfDevice& device = of_device(stream);
  const std::lock_guard lock(device.turn);
  const Plan& plan = device.plan(p);
  if (!plan.graph) return false;
  check(fe::detail::set_stream(device.handle, witan::cuda::native(stream)), "its stream");
  void* workspace = plan.workspace > 0 ? stream.scratch(plan.workspace) : nullptr;
  for (int64_t row = 0; row < p.B; row += plan.rows)
    for (int64_t group = 0; group < p.G; group += plan.groups) {
      std::unordered_map<int64_t, void*> at;
      for (const auto& [operand, place] : places)
        at[operand] = place.tensor.raw() + (row * place.row + group * place.group) * size_of(place.tensor.dtype());
      check(plan.graph->execute(device.handle, at, workspace), "a call");
    }
  return true;
}

}  // namespace

bool attention_forward(Stream& stream, const Tensor& y, const Tensor& lse, const AttentionInputs& in) {
  if (!lse.defined() || !applies(stream, in) || !aligned({in.q, in.k, in.v, y})) return false;
  const Problem p = problem_of(in, false);
  return run(stream, p, places_of(p, in, y, lse));
}

bool attention_backward(Stream& stream, const AttentionGradients& to, const Tensor& dy, const Tensor& y,
                        const Tensor& lse, const AttentionInputs& in) {
  if (!applies(stream, in) || !aligned({in.q, in.k, in.v, y, dy, to.dq, to.dk, to.dv})) return false;
  const Problem p = problem_of(in, true);
  Places places = places_of(p, in, y, lse);
  const Place queries = places.at(kQ), keys = places.at(kK);
  places[kDy] = {dy, queries.row, queries.group};
  places[kDq] = {to.dq, queries.row, queries.group};
  places[kDk] = {to.dk, keys.row, keys.group};
  places[kDv] = {to.dv, keys.row, keys.group};
  return run(stream, p, places);
}

bool has_attention(Stream& stream, const AttentionInputs& in) {
  if (!applies(stream, in)) return false;
  OfDevice& device = of_device(stream);
  const std::lock_guard lock(device.turn);
  return device.plan(problem_of(in, false)).graph && device.plan(problem_of(in, true)).graph;
}

std::string version() {
  return loaded().version;
}
std::string why_none() {
  return loaded().why_none;
}

}  // namespace witan::kernels::cuda::cudnn
