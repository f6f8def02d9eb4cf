// Recording and replaying a stream's work.
#include <vector>

#include "support/cuda_rank.h"
#include "witan/tensor/queue.h"

namespace witan {
namespace {

using testing::CudaTest;

class CudaRecording : public CudaTest {
 protected:
  std::vector<uint8_t> bytes_of(const std::byte* from, int64_t count) {
    std::vector<uint8_t> out(static_cast<size_t>(count));
    gpu().queue()->read(out.data(), from, count);
    return out;
  }
};

// Small memsets are replayed as kernels: of whole words, of odd bytes, at unaligned addresses, between other work, and
// large ones.
TEST_F(CudaRecording, MemsetsWriteExactlyTheirBytes) {
  constexpr int64_t kBytes = int64_t{3} << 20;
  const Tensor to = gpu().empty({kBytes / 4}, DType::f32), source = gpu().zeros({kBytes / 4}, DType::f32);
  const std::vector<uint8_t> poison(kBytes, 0xa5);
  struct Memset {
    int64_t begin, bytes;
  };
  for (const Memset& memset : std::vector<Memset>{{0, 4}, {8, 1024}, {12, 7}, {13, 64}, {4, 1 << 20}, {0, 2 << 20}}) {
    SCOPED_TRACE(cat(memset.bytes, " bytes from ", memset.begin));
    const auto graph = record(*gpu().queue(), [&] {
      gpu().queue()->zero(to.raw() + memset.begin, memset.bytes);
      gpu().queue()->copy(source.raw(), to.raw(), kBytes);
      gpu().queue()->zero(to.raw(), 16);
    });
    for (int replay = 0; replay < 2; ++replay) {
      gpu().write(to, poison.data());
      graph->launch();
      std::vector<uint8_t> expected = poison;
      std::fill_n(expected.begin() + memset.begin, memset.bytes, uint8_t{0});
      ASSERT_EQ(bytes_of(source.raw(), kBytes), expected);
      std::fill_n(expected.begin(), 16, uint8_t{0});
      ASSERT_EQ(bytes_of(to.raw(), kBytes), expected);
    }
  }
}

}  // namespace
}  // namespace witan
