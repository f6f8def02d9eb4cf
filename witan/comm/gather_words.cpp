#include "witan/comm/gather_words.h"

#include <algorithm>

#include "witan/base/threads/threads.h"

namespace witan {

std::vector<int64_t> gather_words(HostGroup& group, const std::vector<int64_t>& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  const auto bytes = [](int64_t words) { return words * static_cast<int64_t>(sizeof(int64_t)) + Arena::kAlignment; };
  ThreadPool alone(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(bytes(count) + bytes(count * group.size())), alone);
  const Tensor own = stream.empty({count}, DType::i64, MemoryTag::communication);
  const Tensor all = stream.empty({count * group.size()}, DType::i64, MemoryTag::communication);
  std::ranges::copy(mine, own.data<int64_t>());
  group.all_gather(stream, all, own);
  return all.to_vector<int64_t>();
}

}  // namespace witan
