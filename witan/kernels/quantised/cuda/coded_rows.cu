#include <utility>

#include "witan/kernels/gemm/cuda/few_rows.cuh"
#include "witan/kernels/quantised/cuda/coding.cuh"

// A block multiplies few rows of x by 16 rows of w, as gemm's kernels for few rows do (gemm/cuda/few_rows.cuh): warps
// divide K, and their sums are added in order. A lane decodes units of K of two rows of w straight into the tensor
// cores' fragments. The 4 lanes that share a row have adjacent units, which a warp multiplies in one step.

namespace witan::kernels::cuda {
namespace {

constexpr int kWarps = 8;

// c[i] = byte selector[i] of the 8 bytes of a and b, or where the selector's highest bit is set, that byte's highest
// bit in all bits. A selector has 4 bits; those beyond the fourth are not looked at.
__device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selectors) {
  uint32_t c;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(selectors));
  return c;
}

template <WeightFormat kFormat, size_t kCode>
__device__ __forceinline__ float number_of() {
  constexpr float kNumber = rules::kCodeValues<kFormat>[kCode];
  return kNumber;
}

// The values of the 16 codes with a scale, rounded to T: lower and upper bytes, four codes in a register.
template <WeightFormat kFormat, class T>
struct Table {
  uint32_t lower[4], upper[4];

  __device__ __forceinline__ explicit Table(typename Coding<kFormat>::Scale scale) {
    uint32_t pairs[8];
    [&]<size_t... kPair>(std::index_sequence<kPair...>) {
      ((pairs[kPair] = pack_pair<T>(Coding<kFormat>::value(number_of<kFormat, 2 * kPair>(), scale),
                                    Coding<kFormat>::value(number_of<kFormat, 2 * kPair + 1>(), scale))),
       ...);
    }
    (std::make_index_sequence<8>());
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      lower[i] = permute(pairs[2 * i], pairs[2 * i + 1], 0x6420);
      upper[i] = permute(pairs[2 * i], pairs[2 * i + 1], 0x7531);
    }
  }

  // The values of 8 codes. A selector has three bits of a code; the fourth chooses between the halves of the table.
  __device__ __forceinline__ uint4 operator()(uint32_t codes) const {
    const uint32_t selectors = codes & 0x77777777u, shifted = codes << 4;
    const uint2 first = four(selectors, permute(codes, shifted, 0x9D8C));
    const uint2 last = four(selectors >> 16, permute(codes, shifted, 0xBFAE));
    return {first.x, first.y, last.x, last.y};
  }

 private:
  // high: a byte of ones for each code from 8 on
  __device__ __forceinline__ uint2 four(uint32_t selectors, uint32_t high) const {
    const uint32_t low_bytes = select(lower, selectors, high), high_bytes = select(upper, selectors, high);
    return {permute(low_bytes, high_bytes, 0x5140), permute(low_bytes, high_bytes, 0x7362)};
  }
  __device__ static __forceinline__ uint32_t select(const uint32_t (&bytes)[4], uint32_t selectors, uint32_t high) {
    return (permute(bytes[0], bytes[1], selectors) & ~high) | (permute(bytes[2], bytes[3], selectors) & high);
  }
};

// A lane's unit of one row of w. Outside w it is zeros.
template <WeightFormat kFormat, class T>
struct Unit {
  static constexpr int kSize = kFormat == WeightFormat::mxfp4 || kFormat == WeightFormat::fp8 ? 32 : 64;  // codes
  static constexpr int kPieces = kSize / 8;                                                               // of 8 values
  static constexpr int kWords = kSize * Coding<kFormat>::kBits / 32;
  uint4 words[kWords / 4] = {};
  typename Coding<kFormat>::Scale scale = {};

  __device__ __forceinline__ void load(const uint32_t* row, const typename Coding<kFormat>::Scale* scales, int unit) {
    const auto* const from = reinterpret_cast<const uint4*>(row + unit * kWords);
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) words[i] = __ldcg(from + i);
    scale = scales[unit * kSize / Coding<kFormat>::kGroup];
  }
  // The i-th word; i is known when it is compiled.
  __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& four = words[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
};

// Decodes the i-th piece of a unit.
template <WeightFormat kFormat, class T>
struct Values {
  const Unit<kFormat, T>& unit;
  const Table<kFormat, T> table{unit.scale};

  __device__ __forceinline__ uint4 piece(int i) const { return table(unit.word(i)); }
};

template <class T>
struct Values<WeightFormat::fp8, T> {
  const Unit<WeightFormat::fp8, T>& unit;

  __device__ __forceinline__ uint4 piece(int i) const {
    const uint2 first = four(unit.word(2 * i)), last = four(unit.word(2 * i + 1));
    return {first.x, first.y, last.x, last.y};
  }

 private:
  __device__ __forceinline__ uint2 four(uint32_t codes) const {
    const float2 first = float8_pair(codes), last = float8_pair(codes >> 16);
    return {pack_pair<T>(first.x * unit.scale, first.y * unit.scale),
            pack_pair<T>(last.x * unit.scale, last.y * unit.scale)};
  }
};

template <WeightFormat kFormat, class T>
struct CodedRowsCall {
  T* y;
  const T* x;
  const uint32_t* words;
  const typename Coding<kFormat>::Scale* scales;
  int rows, N, K;
};

// A warp's step of x in shared memory: a lane reads pieces of its unit of the rows lane / 4, and pieces between units
// and between rows keep the lanes that read at once in different banks.
template <int kPieces, int kTiles>
struct Step {
  static constexpr int kUnit = kPieces + 1, kRow = 4 * kUnit, kSize = kTiles * few::kColumns * kRow;  // in pieces

  template <class T>
  __device__ static __forceinline__ void copy(uint4* to, const T* x, int rows, int K, int step) {
    constexpr int kOfRow = 4 * kPieces;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < min(rows, kTiles * few::kColumns) * kOfRow; i += 32) {
      const int row = i / kOfRow, piece = i % kOfRow, k = (step * kOfRow + piece) * 8;
      few::copy_shared_async(to + row * kRow + piece / kPieces * kUnit + piece % kPieces,
                             x + static_cast<int64_t>(row) * K + (k < K ? k : 0), k < K);
    }
    commit_copies();
  }
  __device__ static __forceinline__ uint4 piece(const uint4* from, int tile, int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return from[(tile * few::kColumns + lane / 4) * kRow + lane % 4 * kUnit + i];
  }
};

// Block i computes the 16 rows of w from 16 i on.
template <WeightFormat kFormat, class T, int kTiles>
__global__ void __launch_bounds__(kWarps * 32) coded_rows_kernel(const CodedRowsCall<kFormat, T> call) {
  using Own = Unit<kFormat, T>;
  using Columns = Step<Own::kPieces, kTiles>;
  extern __shared__ uint4 shared[];
  __shared__ few::WarpSums<kTiles, kWarps> sums;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * few::kWeightRows;
  const int units = call.K / Own::kSize, steps = (units + 3) / 4;
  uint4* const columns = shared + warp * Columns::kSize;

  Own next[2];
  const auto load = [&](int step) {
    const int unit = step * 4 + lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      next[i] = {};
      const int64_t row = min(first + 8 * i + lane / 4, call.N - 1);
      if (unit < units)
        next[i].load(call.words + row * units * Own::kWords, call.scales + row * (call.K / Coding<kFormat>::kGroup),
                     unit);
    }
  };
  load(warp);
  wait_for_earlier();
  let_next_begin();
  float own[kTiles][4] = {};
  for (int step = warp; step < steps; step += kWarps) {
    Columns::copy(columns, call.x, call.rows, call.K, step);
    const Own now[2] = {next[0], next[1]};
    load(step + kWarps);
    const Values<kFormat, T> low{now[0]}, high{now[1]};
    wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < Own::kPieces; ++i) {
      const uint4 a = low.piece(i), b = high.piece(i);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const uint4 x = Columns::piece(columns, tile, i);
        multiply_add<T>(own[tile], FragmentA{{a.x, b.x, a.y, b.y}}, FragmentB{{x.x, x.y}});
        multiply_add<T>(own[tile], FragmentA{{a.z, b.z, a.w, b.w}}, FragmentB{{x.z, x.w}});
      }
    }
    __syncwarp();
  }
  sums.put(own);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * few::kColumns * few::kWeightRows; i += kWarps * 32) {
    const int row = i / few::kWeightRows, r = i % few::kWeightRows;
    if (row < call.rows && first + r < call.N)
      call.y[static_cast<int64_t>(row) * call.N + first + r] =
          convert<T>(sums.sum(r, row / few::kColumns, row % few::kColumns));
  }
}

template <WeightFormat kFormat, class T, int kTiles>
void launch(Stream& stream, const CodedRowsCall<kFormat, T>& call) {
  constexpr int kBytes = kWarps * Step<Unit<kFormat, T>::kPieces, kTiles>::kSize * static_cast<int>(sizeof(uint4));
  const auto kernel = coded_rows_kernel<kFormat, T, kTiles>;
  witan::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                     "asking for shared memory");
  const auto blocks = static_cast<unsigned>((call.N + few::kWeightRows - 1) / few::kWeightRows);
  launch_early(stream, kernel, blocks, kWarps * 32, kBytes, call);
}

template <WeightFormat kFormat>
void multiply(Stream& stream, const Tensor& y, const Tensor& x, const Codes& w) {
  dispatch_half(x.dtype(), [&]<class T>() {
    const CodedRowsCall<kFormat, T> call{ptr<T>(y),
                                         ptr<const T>(x),
                                         ptr<const uint32_t>(w.words),
                                         ptr<const typename Coding<kFormat>::Scale>(w.scales),
                                         static_cast<int>(x.size(0)),
                                         static_cast<int>(y.size(1)),
                                         static_cast<int>(x.size(1))};
    if (call.rows <= few::kColumns)
      launch<kFormat, T, 1>(stream, call);
    else
      launch<kFormat, T, 2>(stream, call);
  });
}

}  // namespace

void coded_rows(Stream& stream, const Tensor& y, const Tensor& x, const Codes& w) {
  const int64_t M = x.size(0), K = x.size(1), N = y.size(1);
  assert(M <= kMostCodedRows && N * K == w.elements() && K % traits_of(w.format).group == 0);
  assert(x.contiguous() && y.contiguous() && w.words.contiguous() && w.scales.contiguous() && y.dtype() == x.dtype());
  assert(N < INT32_MAX && K < INT32_MAX && packs<uint16_t>(x.raw(), K) && packs<uint32_t>(w.words.raw(), 4));
  if (y.elements() == 0) return;
  rules::dispatch_format(w.format, [&]<WeightFormat kFormat>() { multiply<kFormat>(stream, y, x, w); });
}

}  // namespace witan::kernels::cuda
