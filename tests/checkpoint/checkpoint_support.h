// Worlds of thread ranks that save and load, and a small model's state under any layout.
#pragma once

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/message_of.h"
#include "support/rank.h"
#include "support/temp_folder.h"
#include "witan/base/error.h"
#include "witan/checkpoint/step_folders.h"
#include "witan/checkpoint/store.h"
#include "witan/comm/threads/threads.h"

namespace witan::test {

// Runs body(group of all, stream) on `size` ranks.
inline void on_ranks(int size, const std::function<void(Group& world, Stream& stream)>& body,
                     int64_t arena_bytes = int64_t{1} << 24) {
  ThreadWorld threads(size, {.deadline_seconds = 20});
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  threads.run([&](int rank) {
    testing::Rank own(1, arena_bytes);
    const auto world = threads.group(rank, all, "world");
    body(*world, own.stream);
  });
}

// Rows [first, first + rows) of a global tensor whose element i is i + salt.
template <class T>
StateTensor counted(Stream& stream, std::string name, const Shape& global, int64_t first, int64_t rows, int salt,
                    bool writes = true) {
  const Shape shape = global.dims() == 0 ? global : global.with(0, rows);
  Tensor local = stream.empty(shape, dtype_of<T>());
  const int64_t row = rows == 0 ? 0 : shape.elements() / rows;
  for (int64_t i = 0; i < shape.elements(); ++i)
    local.data<T>()[i] = static_cast<T>(static_cast<float>(first * row + i + salt));
  return {std::move(name), std::move(local), global, rows_of(global, first, rows), writes};
}

// The rows of `count` that `rank` of `size` holds, split as evenly as whole rows allow; the first ranks hold more.
inline std::pair<int64_t, int64_t> share(int64_t count, int rank, int size) {
  const int64_t least = count / size, more = count % size;
  return {rank * least + std::min<int64_t>(rank, more), least + (rank < more)};
}

// Replicated weights, experts sharded over ranks (7, so unevenly), optimizer state sharded by rows, a scalar, and a
// tensor without rows.
inline std::vector<StateTensor> model_state(Stream& stream, int rank, int size, int salt) {
  const bool first = rank == 0;
  const auto [expert, experts] = share(7, rank, size);
  const auto [row, rows] = share(5, rank, size);
  return {counted<float>(stream, "embedding.weight", {5, 3}, 0, 5, salt, first),
          counted<bf16>(stream, "layers.0.experts.up_proj", {7, 2, 3}, expert, experts, salt + 100),
          counted<float>(stream, "adam.m/embedding.weight", {5, 3}, row, rows, salt + 200),
          counted<double>(stream, "scale", {}, 0, 1, salt + 300, first),
          counted<int64_t>(stream, "counters", {2}, 0, 2, salt + 400, first),
          counted<int32_t>(stream, "nothing", {0, 4}, 0, 0, 0, first)};
}

inline std::string bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

// The model's tensors with other values, to load into.
inline std::vector<StateTensor> blank_state(Stream& stream, int rank, int size) {
  std::vector<StateTensor> state = model_state(stream, rank, size, 0);
  for (const StateTensor& tensor : state) std::fill_n(tensor.local.raw(), tensor.local.bytes(), std::byte{0x55});
  return state;
}

inline void expect_equal(const std::vector<StateTensor>& found, const std::vector<StateTensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(bytes_of(found[i].local), bytes_of(expected[i].local)) << found[i].name;
}

// Saves the model's state with `size` ranks; values depend on the step.
inline fs::path save_model(const fs::path& folder, int64_t step, int size) {
  on_ranks(size, [&](Group& world, Stream& stream) {
    CheckpointContent content{step, model_state(stream, world.rank(), size, static_cast<int>(step)), {}, {}};
    content.scalars = {{"consumed_samples", step * 8}, {"loss", 0.1}, {"name", "tiny"}};
    content.files = {{"config.toml", "num_layers = 1\n"}};
    save_checkpoint(world, stream, folder, content);
  });
  return folder / step_folder_name(step);
}

// Replaces a file without flushing. (Emptying a file and rewriting it would flush it on many file systems, which is
// slow.)
inline void put(const fs::path& path, std::string_view bytes) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(folder)) names.push_back(item.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace witan::test
