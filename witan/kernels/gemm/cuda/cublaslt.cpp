#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "witan/base/threads/mutex.h"
#include "witan/kernels/gemm/cuda/gemm.h"
#include "witan/kernels/gemm/product_scopes.h"
#include "witan/tensor/cuda/library.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::kernels::cuda {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;  // NVIDIA's recommendation for Hopper
static_assert(kWorkspace <= Stream::kScratchBytes);
constexpr int kChoices = 8;              // algorithms requested; the library offers few more for any problem
constexpr double kWorthTrying = 2e9;     // FLOPs of a product from which its algorithms are timed
constexpr float kNearlyFull = 0.8f;      // of the multiprocessors
constexpr int kCalls = 4, kSamples = 3;  // per timing
constexpr double kClearly = 0.98;        // of the first choice's time: only an algorithm clearly faster replaces it
constexpr uint32_t kAligned = 16;        // bytes of the widest loads
constexpr int64_t kTypicalBatch = 32;    // algorithms of batches are chosen for this size, whatever the actual one
constexpr int64_t kTypicalRows = 4096;   // likewise for products whose rows must not depend on each other
constexpr int32_t kHopperId = 66;        // of the library's kernels for Hopper; those of 16 bits add in chains

struct Api {
  const witan::cuda::Library& library = witan::cuda::cublaslt();
#define WITAN_CUBLASLT(name) decltype(&::name) name = library.symbol<decltype(::name)>(#name)
  WITAN_CUBLASLT(cublasLtCreate);
  WITAN_CUBLASLT(cublasLtGetStatusName);
  WITAN_CUBLASLT(cublasLtMatmul);
  WITAN_CUBLASLT(cublasLtMatmulAlgoCheck);
  WITAN_CUBLASLT(cublasLtMatmulAlgoConfigGetAttribute);
  WITAN_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
  WITAN_CUBLASLT(cublasLtMatmulDescInit_internal);
  WITAN_CUBLASLT(cublasLtMatmulDescSetAttribute);
  WITAN_CUBLASLT(cublasLtMatmulPreferenceInit_internal);
  WITAN_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
  WITAN_CUBLASLT(cublasLtMatrixLayoutInit_internal);
  WITAN_CUBLASLT(cublasLtMatrixLayoutSetAttribute);
#undef WITAN_CUBLASLT

  void check(cublasStatus_t status, const char* what) const {
    require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt, ", what, ": ", cublasLtGetStatusName(status));
  }
};

// Null if the library cannot be loaded, which is tried once.
const Api* find_api() {
  static const std::unique_ptr<const Api> api = []() -> std::unique_ptr<const Api> {
    try {
      return std::make_unique<const Api>();
    } catch (const DeviceError&) {
      return nullptr;  // `witan doctor --gpu` says why
    }
  }();
  return api.get();
}

// The properties of a problem that an algorithm depends on.
struct Problem {
  int device;
  DType in, out;
  Transpose transpose_a, transpose_b;
  int64_t M, N, K;
  int64_t a_stride, b_stride, c_stride;           // elements between rows
  uint32_t a_aligned, b_aligned, c_aligned;       // bytes
  int64_t batch = 0;                              // matrices; 0: a single product
  int64_t a_apart = 0, b_apart = 0, c_apart = 0;  // elements between matrices
  bool biased = false;
  bool by_row = false;  // see kernels/gemm/product_scopes.h
  auto operator<=>(const Problem&) const = default;
};

// The library's matrices are column-major, so a row-major matrix is a transpose there, and c^T = op(b)^T op(a)^T. The
// library takes pointers to non-const descriptors, though it does not write them: a known plan never changes.
struct Plan {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};  // our a, b, c
  std::vector<cublasLtMatmulAlgo_t>
      algorithms;  // empty: impossible. The first is used; the others are still to be tried
};

// The largest power of two, at most 16, that divides the address: no kernel needs more, and the choice should depend
// little on where a tensor is placed.
uint32_t alignment(const Tensor& tensor, int64_t bytes_apart = 0) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw()) | static_cast<uintptr_t>(bytes_apart) | kAligned;
  return static_cast<uint32_t>(address & -address);
}

Problem problem_of(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                   Transpose transpose_b) {
  return {.device = stream.device().index,
          .in = a.dtype(),
          .out = c.dtype(),
          .transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .M = c.size(0),
          .N = c.size(1),
          .K = a.size(transpose_a == Transpose::yes ? 0 : 1),
          .a_stride = std::max(a.stride(0), a.size(1)),
          .b_stride = std::max(b.stride(0), b.size(1)),
          .c_stride = std::max(c.stride(0), c.size(1)),
          .a_aligned = alignment(a),
          .b_aligned = alignment(b),
          .c_aligned = alignment(c),
          .by_row = RowProducts::on() && transpose_a == Transpose::no};
}

Problem problem_of(Stream& stream, const Tensor& d, const BatchedProduct& p) {
  const auto aligned = [](const Tensor& batch) { return alignment(batch, batch.stride(0) * size_of(batch.dtype())); };
  return {.device = stream.device().index,
          .in = d.dtype(),
          .out = d.dtype(),
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .M = d.size(1),
          .N = d.size(2),
          .K = p.a.size(p.transpose_a == Transpose::yes ? 1 : 2),
          .a_stride = std::max(p.a.stride(1), p.a.size(2)),
          .b_stride = std::max(p.b.stride(1), p.b.size(2)),
          .c_stride = std::max(d.stride(1), d.size(2)),
          .a_aligned = aligned(p.a),
          .b_aligned = aligned(p.b),
          .c_aligned = p.c.defined() ? std::min(aligned(p.c), aligned(d)) : aligned(d),
          .batch = d.size(0),
          .a_apart = p.a.stride(0),
          .b_apart = p.b.stride(0),
          .c_apart = d.stride(0)};
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    default:
      return CUDA_R_16BF;
  }
}

void point_to_bias(const Api& api, cublasLtMatmulDescOpaque_t& product, const void* bias) {
  api.check(api.cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias),
            "adding a bias");
}

// `bias`: any bias of such a problem, or null if it has none; each call sets its own.
void describe(const Api& api, const Problem& p, const void* bias, Plan& plan) {
  const bool wide = p.in == DType::f64;
  api.check(api.cublasLtMatmulDescInit_internal(&plan.product, sizeof plan.product,
                                                wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                                wide ? CUDA_R_64F : CUDA_R_32F),
            "describing a product");
  const auto transpose = [&](cublasLtMatmulDescAttributes_t which, Transpose ours) {
    const cublasOperation_t theirs = ours == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
    api.check(api.cublasLtMatmulDescSetAttribute(&plan.product, which, &theirs, sizeof theirs), "transposing");
  };
  transpose(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b);  // their first operand is our second
  transpose(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a);
  if (p.biased) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;  // per row in the library's terms, per column in ours
    api.check(
        api.cublasLtMatmulDescSetAttribute(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue),
        "adding a bias");
    point_to_bias(api, plan.product, bias);
  }
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, DType dtype, int64_t rows, int64_t columns, int64_t stride,
                          int64_t apart) {
    api.check(api.cublasLtMatrixLayoutInit_internal(&to, sizeof to, type_of(dtype), static_cast<uint64_t>(columns),
                                                    static_cast<uint64_t>(rows), stride),
              "describing a matrix");
    if (p.batch == 0) return;
    const auto count = static_cast<int32_t>(p.batch);
    api.check(api.cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
              "describing a batch");
    api.check(
        api.cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart, sizeof apart),
        "describing a batch");
  };
  const bool ta = p.transpose_a == Transpose::yes, tb = p.transpose_b == Transpose::yes;
  layout(plan.a, p.in, ta ? p.K : p.M, ta ? p.M : p.K, p.a_stride, p.a_apart);
  layout(plan.b, p.in, tb ? p.N : p.K, tb ? p.K : p.N, p.b_stride, p.b_apart);
  layout(plan.c, p.out, p.M, p.N, p.c_stride, p.c_apart);
}

template <class Value>
Value property_of(const Api& api, const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which) {
  Value value{};
  size_t written = 0;
  api.check(api.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof value, &written),
            "looking at an algorithm");
  return value;
}

// The number of parts into which an algorithm divides the sum (split-K), and how it reduces them, which determine a
// result's bits.
std::pair<int32_t, uint32_t> parts_of(const Api& api, const cublasLtMatmulAlgo_t& algorithm) {
  return {property_of<int32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          property_of<uint32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)};
}

bool is_chain(const Api& api, const Problem& p, const cublasLtMatmulAlgo_t& algorithm) {
  return size_of(p.in) == 2 && property_of<int32_t>(api, algorithm, CUBLASLT_ALGO_CONFIG_ID) == kHopperId &&
         parts_of(api, algorithm).first <= 1;
}

// The first of the library's choices that does not split sums. If it adds in chains, so do the others here, which have
// its bits for any number of rows; otherwise it is alone.
std::vector<cublasLtMatmulAlgo_t> whole_choices(const Api& api, const Problem& p,
                                                std::span<const cublasLtMatmulHeuristicResult_t> choices) {
  std::vector<cublasLtMatmulAlgo_t> all;
  for (const cublasLtMatmulHeuristicResult_t& choice : choices)
    if (choice.state == CUBLAS_STATUS_SUCCESS && parts_of(api, choice.algo).first <= 1 &&
        (all.empty() || (is_chain(api, p, all[0]) && is_chain(api, p, choice.algo))))
      all.push_back(choice.algo);
  return all;
}

// The library's first choice, or its second if only that one does not split sums and it keeps nearly all
// multiprocessors busy, which saves writing the parts to memory, and a launch.
size_t first_choice(const Api& api, std::span<const cublasLtMatmulHeuristicResult_t> choices) {
  const auto whole = [&](size_t i) { return parts_of(api, choices[i].algo).first <= 1; };
  const bool second = choices.size() > 1 && choices[1].state == CUBLAS_STATUS_SUCCESS && !whole(0) && whole(1) &&
                      choices[1].wavesCount >= kNearlyFull;
  return second ? 1 : 0;
}

void choose(const Api& api, const Problem& p, Plan& plan) {
  cublasLtMatmulPreferenceOpaque_t wish{};
  api.check(api.cublasLtMatmulPreferenceInit_internal(&wish, sizeof wish), "preparing a search");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    api.check(api.cublasLtMatmulPreferenceSetAttribute(&wish, which, &value, sizeof value), "preparing a search");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspace));
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b_aligned);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a_aligned);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.c_aligned);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.c_aligned);
  std::array<cublasLtMatmulHeuristicResult_t, kChoices> found{};
  int count = 0;
  const cublasStatus_t status = api.cublasLtMatmulAlgoGetHeuristic(
      plan.handle, &plan.product, &plan.b, &plan.a, &plan.c, &plan.c, &wish, kChoices, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
  api.check(status, "choosing an algorithm");
  const std::span choices(found.data(), static_cast<size_t>(count));
  if (choices.empty() || choices[0].state != CUBLAS_STATUS_SUCCESS) return;
  if (p.by_row) {
    plan.algorithms = whole_choices(api, p, choices);
    return;
  }
  const size_t first = first_choice(api, choices);
  plan.algorithms = {choices[first].algo};
  for (size_t i = 0; i < choices.size(); ++i)
    if (i != first && choices[i].state == CUBLAS_STATUS_SUCCESS &&
        parts_of(api, choices[i].algo) == parts_of(api, choices[first].algo))
      plan.algorithms.push_back(choices[i].algo);
}

// The algorithms found for this machine's devices, shared by all ranks. Entries are never removed.
class Knowledge {
 public:
  explicit Knowledge(const Api& api) : api_(api) {}

  std::shared_ptr<Plan> plan(const Problem& problem, const void* bias) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Plan>& known = plans_[problem];
    if (!known) {
      auto plan = std::make_shared<Plan>();
      plan->handle = handle(problem.device);
      Problem typical = problem;
      if (problem.batch > 0) typical.batch = kTypicalBatch;
      if (problem.by_row) typical.M = kTypicalRows;
      describe(api_, typical, bias, *plan);
      choose(api_, typical, *plan);
      if (problem.batch > 0 || problem.by_row) describe(api_, problem, bias, *plan);
      if (problem.by_row) {
        std::erase_if(plan->algorithms, [&](const auto& one) { return !applies(*plan, one); });
        prefer_own_chains(problem, *plan);
      }
      known = std::move(plan);
    }
    return known;
  }
  // Fixes the algorithm of the problem.
  void settle(const Problem& problem, const cublasLtMatmulAlgo_t& algorithm) {
    const MutexLock lock(mutex_);
    std::shared_ptr<Plan>& known = plans_.at(problem);
    known = std::make_shared<Plan>(*known);
    known->algorithms = {algorithm};
  }

 private:
  // Whether an algorithm that was chosen for other sizes supports these.
  bool applies(Plan& plan, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return api_.cublasLtMatmulAlgoCheck(plan.handle, &plan.product, &plan.b, &plan.a, &plan.c, &plan.c, &algorithm,
                                        &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(kWorkspace);
  }
  // All algorithms that add in chains have the same bits: those for the actual number of rows are as good, and faster.
  void prefer_own_chains(const Problem& problem, Plan& plan) const {
    const auto is_other = [&](const auto& one) { return !is_chain(api_, problem, one); };
    if (plan.algorithms.empty() || is_other(plan.algorithms[0])) return;
    Plan own = plan;
    own.algorithms.clear();
    choose(api_, problem, own);
    std::erase_if(own.algorithms, is_other);
    if (!own.algorithms.empty()) plan.algorithms = std::move(own.algorithms);
  }
  cublasLtHandle_t handle(int device) WITAN_REQUIRES(mutex_) {
    cublasLtHandle_t& handle = handles_[device];
    if (!handle) {
      const witan::cuda::OnDevice on(device);
      api_.check(api_.cublasLtCreate(&handle), "starting");
    }
    return handle;
  }

  const Api& api_;
  Mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_ WITAN_GUARDED_BY(mutex_);
  std::map<Problem, std::shared_ptr<Plan>> plans_ WITAN_GUARDED_BY(mutex_);
};

bool is_captured(Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  witan::cuda::check(cudaStreamIsCapturing(witan::cuda::native(stream), &status), "asking whether a graph is captured");
  return status != cudaStreamCaptureStatusNone;
}

// The fastest of the plan's algorithms that give the same bits as its first, whose result is left in c.
// multiply(algorithm) overwrites c. No lock is held while the device is waited for, so that other ranks are not held
// up.
template <class Multiply>
cublasLtMatmulAlgo_t fastest(Stream& stream, const Plan& plan, const Tensor& c, const Multiply& multiply) {
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const auto samples = witan::cuda::time_calls(*stream.queue(), kSamples, [&] {
      for (int i = 0; i < kCalls; ++i) multiply(algorithm);
    });
    return std::ranges::min(samples);
  };
  cublasLtMatmulAlgo_t best = plan.algorithms[0];
  multiply(best);
  const uint64_t bits = fingerprint(stream, c);
  double to_beat = kClearly * seconds(best);
  for (size_t i = 1; i < plan.algorithms.size(); ++i) {
    multiply(plan.algorithms[i]);
    if (fingerprint(stream, c) != bits) continue;
    const double its = seconds(plan.algorithms[i]);
    if (its >= to_beat) continue;
    to_beat = its;
    best = plan.algorithms[i];
  }
  multiply(best);
  return best;
}

// Null if the library is missing.
Knowledge* find_knowledge() {
  static const std::unique_ptr<Knowledge> knowledge =
      find_api() != nullptr ? std::make_unique<Knowledge>(*find_api()) : nullptr;
  return knowledge.get();
}

// d = alpha op(a) op(b) + beta c, where c may be d; the bias, unless null, is added to each row.
struct Operands {
  const Tensor &d, &a, &b, &c;
  double alpha, beta;
  const void* bias = nullptr;
};

bool multiply(Stream& stream, const Problem& problem, const Operands& operands) {
  Knowledge* knowledge = find_knowledge();
  if (knowledge == nullptr) return false;
  const Api& api = *find_api();
  const std::shared_ptr<Plan> plan = knowledge->plan(problem, operands.bias);
  if (plan->algorithms.empty()) return false;
  cublasLtMatmulDescOpaque_t product = plan->product;
  if (problem.biased) point_to_bias(api, product, operands.bias);
  const auto multiply_by = [&](const cublasLtMatmulAlgo_t& algorithm) {
    const auto call = [&]<class Scale>(Scale of_product, Scale of_c) {
      api.check(api.cublasLtMatmul(plan->handle, &product, &of_product, operands.b.raw(), &plan->b, operands.a.raw(),
                                   &plan->a, &of_c, operands.c.raw(), &plan->c, operands.d.raw(), &plan->c, &algorithm,
                                   stream.scratch(kWorkspace), kWorkspace, witan::cuda::native(stream)),
                "multiplying");
    };
    if (operands.a.dtype() == DType::f64)
      call(operands.alpha, operands.beta);
    else
      call(static_cast<float>(operands.alpha), static_cast<float>(operands.beta));
  };
  const bool again = operands.beta == 0 || operands.c.raw() != operands.d.raw();  // a second call would write the same
  const double flops = 2.0 * static_cast<double>(problem.M) * static_cast<double>(problem.N) *
                       static_cast<double>(problem.K) * static_cast<double>(std::max<int64_t>(problem.batch, 1));
  if (plan->algorithms.size() == 1 || !again || flops < kWorthTrying || is_captured(stream))
    multiply_by(plan->algorithms[0]);
  else
    knowledge->settle(problem, fastest(stream, *plan, operands.d, multiply_by));
  return true;
}

}  // namespace

bool gemm_by_cublaslt(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                      const Tensor& b, Transpose transpose_b) {
  return multiply(stream, problem_of(stream, c, a, transpose_a, b, transpose_b),
                  {c, a, b, c, 1, write == Write::accumulate ? 1.0 : 0.0});
}

bool gemm_with_bias_by_cublaslt(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a,
                                const Tensor& b, Transpose transpose_b, const Tensor& bias) {
  if (alignment(bias) != kAligned) return false;
  Problem problem = problem_of(stream, c, a, transpose_a, b, transpose_b);
  problem.biased = true;
  return multiply(stream, problem, {c, a, b, c, 1, 0, bias.raw()});
}

bool adds_in_chains(Stream& stream, const Tensor& c, const Tensor& a, Transpose transpose_a, const Tensor& b,
                    Transpose transpose_b, const Tensor& bias) {
  Knowledge* knowledge = find_knowledge();
  if (knowledge == nullptr || (bias.defined() && alignment(bias) != kAligned)) return false;
  Problem problem = problem_of(stream, c, a, transpose_a, b, transpose_b);
  problem.biased = bias.defined();
  const std::shared_ptr<Plan> plan = knowledge->plan(problem, problem.biased ? bias.raw() : nullptr);
  return problem.by_row && !plan->algorithms.empty() && is_chain(*find_api(), problem, plan->algorithms[0]);
}

bool batched_gemm_by_cublaslt(Stream& stream, const Tensor& d, const BatchedProduct& p) {
  return multiply(stream, problem_of(stream, d, p), {d, p.a, p.b, p.c.defined() ? p.c : d, p.alpha, p.beta});
}

}  // namespace witan::kernels::cuda
