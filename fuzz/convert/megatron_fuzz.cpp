// Megatron-LM checkpoints. The first byte selects the format of the rest: all files of a torch_dist checkpoint, the
// file of a legacy one, a pickle, or a file of torch.save. A checkpoint that opens must have tensors whose pieces lie
// within their files.
#include "fuzz/support.h"
#include "witan/convert/megatron/megatron_folder.h"

namespace witan {
namespace {

// A folder per checkpoint.
struct Checkpoints {
  Checkpoints() {
    fs::create_directories(folder / "dist");
    fs::create_directories(folder / "legacy/mp_rank_00");
  }
  fuzz::Folder folder;
};

void open_folder(const fs::path& path, size_t size) {
  fuzz::expect_own_errors([&] {
    const MegatronFolder opened(path);
    unsigned sum = 0;
    for (const auto& [name, tensor] : opened.tensors())
      for (const MegatronChunk& chunk : tensor.chunks)
        for (const std::byte byte : chunk.bytes) sum += static_cast<unsigned>(byte);
    assert(sum <= 255 * 64 * size * size + 1);
    opened.arguments();
  });
}

}  // namespace
}  // namespace witan

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const Checkpoints checkpoints;
  if (size == 0) return 0;
  const std::string_view bytes = fuzz::text_of(data + 1, size - 1);
  const fuzz::Folder& folder = checkpoints.folder;
  switch (data[0] % 4) {
    case 0:
      for (const char* name : {"dist/.metadata", "dist/__0_0.distcp", "dist/common.pt"}) folder.write(name, bytes);
      open_folder(folder / "dist", size);
      break;
    case 1:
      folder.write("legacy/mp_rank_00/model_optim_rng.pt", bytes);
      open_folder(folder / "legacy", size);
      break;
    case 2:
      fuzz::expect_own_errors([&] { Pickle(bytes, "input"); });
      break;
    default:
      fuzz::expect_own_errors([&] { TorchFile(std::as_bytes(std::span(bytes)), "input"); });
  }
  return 0;
}
