#include "witan/data/token_dataset.h"

#include <algorithm>

#include "witan/base/error.h"
#include "witan/data/conversation_dataset.h"
#include "witan/data/indexed_dataset.h"
#include "witan/data/npy_tokens.h"
#include "witan/data/token_bin.h"

namespace witan {

void TokenDataset::read_loss(int64_t, int64_t, std::span<int32_t> out) const {
  std::ranges::fill(out, 1);
}

std::shared_ptr<const TokenDataset> open_tokens(const fs::path& path, std::optional<int32_t> end_of_text) {
  if (path.extension() == ".npy") return std::make_shared<NpyTokens>(path, end_of_text);
  fs::path prefix = path;
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  const fs::path bin = prefix.string() + ".bin", idx = prefix.string() + ".idx";
  require<DataError>(fs::exists(bin), "there is no token file ", bin.string(), "; make one with `witan data`");
  if (fs::exists(prefix.string() + kLossSuffix + ".idx")) return open_conversation_shards(prefix);
  if (fs::exists(idx)) return std::make_shared<IndexedDataset>(prefix);
  return std::make_shared<TokenBin>(bin, end_of_text);
}

}  // namespace witan
