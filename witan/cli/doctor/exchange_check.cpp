#include "witan/cli/doctor/exchange_check.h"

#include <algorithm>

#include "witan/base/threads/threads.h"
#include "witan/comm/threads/threads.h"

namespace witan::cli {
namespace {

template <class T>
Tensor upload(Stream& stream, const std::vector<T>& values) {
  const Tensor tensor = stream.empty({static_cast<int64_t>(values.size())}, dtype_of<T>());
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

// What this rank receives. `splits` are the rows it has for each rank.
std::vector<int32_t> exchange(Group& group, const std::vector<int32_t>& rows, const std::vector<int64_t>& splits) {
  ThreadPool pool(1);
  Stream stream({Device::Kind::cpu}, Arena::reserve(1 << 20), pool);
  const Tensor in = upload(stream, rows);             // [I] grouped by destination
  const Tensor send_counts = upload(stream, splits);  // [2]
  const Tensor recv_counts = stream.empty_like(send_counts);
  group.all_to_all_equal(stream, recv_counts, send_counts);
  const auto counts = recv_counts.to_vector<int64_t>();
  const Tensor out = stream.empty({counts[0] + counts[1]}, DType::i32);  // [O] grouped by source
  group.all_to_all(stream, out, recv_counts, in, send_counts);
  return out.to_vector<int32_t>();
}

}  // namespace

bool ExchangeCheck::ok() const {
  return received[0] == std::vector<int32_t>{0, 1, 10, 11, 12} &&
         received[1] == std::vector<int32_t>{2, 3, 4, 13, 14, 15};
}

ExchangeCheck check_exchange() {
  ExchangeCheck check;
  check.sent = {std::vector<int32_t>{0, 1, 2, 3, 4}, std::vector<int32_t>{10, 11, 12, 13, 14, 15}};
  const std::array<std::vector<int64_t>, 2> splits = {std::vector<int64_t>{2, 3}, std::vector<int64_t>{3, 3}};
  ThreadWorld world(2, {.deadline_seconds = 10});
  world.run([&](int index) {
    const auto rank = static_cast<size_t>(index);
    const auto group = world.group(index, {0, 1}, "expert");
    check.received[rank] = exchange(*group, check.sent[rank], splits[rank]);
  });
  return check;
}

}  // namespace witan::cli
