// A checkpoint of Megatron-LM's that opens has tensors whose pieces lie within their files and cover them. The input is
// the description of a torch_dist checkpoint, the file of its tensors, and the file of a legacy one.
#include "fuzz/support.h"
#include "witan/convert/megatron/megatron_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace witan;
  static const fuzz::Folder folder;
  static const fs::path dist = [] {
    fs::create_directories(folder / "mp_rank_00");
    fs::create_directories(folder / "dist");
    return folder / "dist";
  }();
  const std::string_view bytes = fuzz::text_of(data, size);
  folder.write("dist/.metadata", bytes);
  folder.write("dist/__0_0.distcp", bytes);
  folder.write("dist/common.pt", bytes);
  folder.write("mp_rank_00/model_optim_rng.pt", bytes);
  for (const fs::path& path : {dist, folder / "."}) {
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
  fuzz::expect_own_errors([&] { Pickle(bytes, "input"); });
  fuzz::expect_own_errors([&] { TorchFile(std::as_bytes(std::span(bytes)), "input"); });
  return 0;
}
