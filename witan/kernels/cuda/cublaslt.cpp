#include "witan/kernels/cuda/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "witan/tensor/cuda/library.h"
#include "witan/tensor/cuda/stream.h"

namespace witan::kernels::cuda {
namespace {

constexpr int64_t kWorkspace = int64_t{32} << 20;  // what NVIDIA recommends for Hopper
static_assert(kWorkspace <= Stream::kScratchBytes);

struct Api {
  const witan::cuda::Library& library = witan::cuda::cublaslt();
#define WITAN_CUBLASLT(name) decltype(&::name) name = library.symbol<decltype(::name)>(#name)
  WITAN_CUBLASLT(cublasLtCreate);
  WITAN_CUBLASLT(cublasLtGetStatusName);
  WITAN_CUBLASLT(cublasLtMatmul);
  WITAN_CUBLASLT(cublasLtMatmulAlgoGetHeuristic);
  WITAN_CUBLASLT(cublasLtMatmulDescInit_internal);
  WITAN_CUBLASLT(cublasLtMatmulDescSetAttribute);
  WITAN_CUBLASLT(cublasLtMatmulPreferenceInit_internal);
  WITAN_CUBLASLT(cublasLtMatmulPreferenceSetAttribute);
  WITAN_CUBLASLT(cublasLtMatrixLayoutInit_internal);
#undef WITAN_CUBLASLT

  void check(cublasStatus_t status, const char* what) const {
    require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt, ", what, ": ", cublasLtGetStatusName(status));
  }
};

// Null where the library cannot be loaded: looked for once.
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

// What an algorithm depends on.
struct Problem {
  int device;
  DType in, out;
  Transpose transpose_a, transpose_b;
  int64_t M, N, K;
  int64_t a_stride, b_stride, c_stride;      // elements between rows
  uint32_t a_aligned, b_aligned, c_aligned;  // bytes
  auto operator<=>(const Problem&) const = default;
};

// The library's matrices are column-major: what is row-major here is a transpose there, and c^T = op(b)^T op(a)^T.
struct Plan {
  cublasLtHandle_t handle = nullptr;
  bool possible = false;
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};  // our a, b, c
  cublasLtMatmulAlgo_t algorithm{};
};

// The greatest power of two, 16 at most, that divides the address: no kernel asks for more, and the choice depends on
// little of where a tensor happens to lie.
uint32_t alignment(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.raw()) | 16;
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
          .c_aligned = alignment(c)};
}

cudaDataType_t type_of(DType dtype) {
  return dtype == DType::f64 ? CUDA_R_64F : dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

void describe(const Api& api, const Problem& p, Plan& plan) {
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
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t& to, DType dtype, int64_t rows, int64_t columns,
                          int64_t stride) {
    api.check(api.cublasLtMatrixLayoutInit_internal(&to, sizeof to, type_of(dtype), static_cast<uint64_t>(columns),
                                                    static_cast<uint64_t>(rows), stride),
              "describing a matrix");
  };
  const bool ta = p.transpose_a == Transpose::yes, tb = p.transpose_b == Transpose::yes;
  layout(plan.a, p.in, ta ? p.K : p.M, ta ? p.M : p.K, p.a_stride);
  layout(plan.b, p.in, tb ? p.N : p.K, tb ? p.K : p.N, p.b_stride);
  layout(plan.c, p.out, p.M, p.N, p.c_stride);
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
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  const cublasStatus_t status = api.cublasLtMatmulAlgoGetHeuristic(plan.handle, &plan.product, &plan.b, &plan.a,
                                                                   &plan.c, &plan.c, &wish, 1, &best, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
  api.check(status, "choosing an algorithm");
  plan.possible = found > 0 && best.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = best.algo;
}

// What is known of the library on this machine's devices, shared by all ranks; nothing is ever taken out.
class Knowledge {
 public:
  explicit Knowledge(const Api& api) : api_(api) {}

  // The library takes descriptors as pointers to what it does not write.
  Plan& plan(const Problem& problem) {
    const std::lock_guard lock(mutex_);
    if (const auto known = plans_.find(problem); known != plans_.end()) return known->second;
    Plan plan{.handle = handle(problem.device)};
    describe(api_, problem, plan);
    choose(api_, problem, plan);
    return plans_.emplace(problem, plan).first->second;
  }

 private:
  cublasLtHandle_t handle(int device) {
    cublasLtHandle_t& handle = handles_[device];
    if (!handle) {
      const witan::cuda::OnDevice on(device);
      api_.check(api_.cublasLtCreate(&handle), "starting");
    }
    return handle;
  }

  const Api& api_;
  std::mutex mutex_;
  std::map<int, cublasLtHandle_t> handles_;
  std::map<Problem, Plan> plans_;
};

}  // namespace

bool gemm_by_cublaslt(Stream& stream, const Tensor& c, Write write, const Tensor& a, Transpose transpose_a,
                      const Tensor& b, Transpose transpose_b) {
  const Api* api = find_api();
  if (!api) return false;
  static Knowledge knowledge(*api);
  Plan& plan = knowledge.plan(problem_of(stream, c, a, transpose_a, b, transpose_b));
  if (!plan.possible) return false;
  const auto multiply = [&]<class Scale>(Scale one, Scale beta) {
    api->check(api->cublasLtMatmul(plan.handle, &plan.product, &one, b.raw(), &plan.b, a.raw(), &plan.a, &beta, c.raw(),
                                   &plan.c, c.raw(), &plan.c, &plan.algorithm, stream.scratch(kWorkspace), kWorkspace,
                                   witan::cuda::native(stream)),
               "multiplying");
  };
  const bool add = write == Write::accumulate;
  if (a.dtype() == DType::f64)
    multiply(1.0, add ? 1.0 : 0.0);
  else
    multiply(1.0f, add ? 1.0f : 0.0f);
  return true;
}

}  // namespace witan::kernels::cuda
